package cacheaside_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// Before you rely on the cache, the loader reads from the database and counts how many cached
// values would have been stale.
func ExampleLoaderOptions_shadow() {
	server, _ := miniredis.Run()
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	cache, _ := cacheaside.New(rdb, patient)
	defer cache.Close()
	price := map[string]string{"tea": "9.90", "cake": "4.20"}
	prices, _ := cacheaside.NewLoader(cache, "price", func(_ context.Context, what string) (string, error) {
		return price[what], nil
	}, &cacheaside.LoaderOptions{Shadow: 1}) // compares every key; with many keys, use 0.1 or 0.01
	ctx := context.Background()
	compared := func(n int64) {
		for s := prices.Stats(); s.ShadowMisses+s.ShadowCompared+s.ShadowUndecided < n; s = prices.Stats() {
			time.Sleep(10 * time.Millisecond)
		}
	}
	prices.GetMany(ctx, []string{"tea", "cake"})
	compared(2) // it is cached now

	price = map[string]string{"tea": "12.00", "cake": "4.50"}
	prices.Invalidate(ctx, "cake") // the invalidation of the tea is forgotten
	fmt.Println(prices.GetMany(ctx, []string{"tea", "cake"}))
	compared(4)
	s := prices.Stats()
	fmt.Printf("%d of %d hits would have been stale\n", s.ShadowStale, s.ShadowCompared)
	// Output:
	// map[cake:4.50 tea:12.00] <nil>
	// 1 of 1 hits would have been stale
}
