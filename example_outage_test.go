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

// Each loader has a policy for reads while Redis is unreachable.
func ExampleDownPolicy() {
	server, _ := miniredis.Run() // any Redis
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// Wait of the first reads.
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{ReadTimeout: 50 * time.Millisecond})
	defer cache.Close()
	row := func(_ context.Context, id int) (string, error) { return fmt.Sprint("row ", id), nil }
	// By default LoadWhenDown: read the database.
	users, _ := cacheaside.NewLoader(cache, "user", row, nil)
	reports, _ := cacheaside.NewLoader(cache, "report", row, &cacheaside.LoaderOptions{
		// Do not read the database: serve from memory, or return an error.
		RedisDown: cacheaside.StaleWhenDown,
	})
	ctx := context.Background()
	// Values are kept in memory only after the process receives invalidations.
	for cache.Stats().Bus.Trusted == 0 {
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
