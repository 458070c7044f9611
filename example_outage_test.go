package cacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// What reads do while Redis is out of reach is a loader's policy.
func ExampleDownPolicy() {
	server, _ := miniredis.Run() // any Redis
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{ReadTimeout: 50 * time.Millisecond}) // how long the first reads wait
	defer cache.Close()
	row := func(_ context.Context, id int) (string, error) { return fmt.Sprint("row ", id), nil }
	users, _ := cacheaside.NewLoader(cache, "user", row, nil) // by default, LoadWhenDown: the database answers
	reports, _ := cacheaside.NewLoader(cache, "report", row, &cacheaside.LoaderOptions{
		RedisDown: cacheaside.StaleWhenDown, // it does not bear these: what memory has, or an error
	})
	ctx := context.Background()
	for cache.Stats().Bus.Trusted == 0 { // what is read before the process hears of invalidations is not remembered
		reports.Get(ctx, 1)
	}
	for before := reports.Stats().MemoryHits; reports.Stats().MemoryHits == before; {
		reports.Get(ctx, 1)
	}

	server.Close()
	fmt.Println(users.Get(ctx, 1))
	fmt.Println(reports.Get(ctx, 1))
	_, err := reports.Get(ctx, 2)
	fmt.Println(errors.Is(err, cacheaside.ErrRedis))
	// Output:
	// row 1 <nil>
	// row 1 <nil>
	// true
}
