package cacheaside_test

import (
	"context"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside"
)

// PreferPrimary takes load off the primary of a database without caching old rows from a lagging
// replica.
func ExamplePreferPrimary() {
	primary, replica := map[int64]string{42: "Ada"}, map[int64]string{42: "Ada"}
	load := func(ctx context.Context, id int64) (string, error) {
		if cacheaside.PreferPrimary(ctx) {
			fmt.Println("reading from the primary")
			return primary[id], nil
		}
		fmt.Println("reading from a replica")
		return replica[id], nil
	}
	// Works the same with Redis.
	cache, err := cacheaside.NewLocal(&cacheaside.Options{ReplicaLag: time.Minute})
	if err != nil {
		panic(err)
	}
	defer cache.Close()
	names, err := cacheaside.NewLoader(cache, "name", load, nil)
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	fmt.Println(names.Get(ctx, 42))

	primary[42] = "Grace" // the replica follows some milliseconds later
	if err := names.Invalidate(ctx, 42); err != nil {
		panic(err)
	}
	fmt.Println(names.Get(ctx, 42)) // for a minute, the value is not stored
	// Output:
	// reading from a replica
	// Ada <nil>
	// reading from the primary
	// Grace <nil>
}
