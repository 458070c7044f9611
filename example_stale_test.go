package cacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// A value has two lives: for TTL it is fresh, and for StaleFor it is served while it is reloaded,
// or while reloads fail. Here the database is down for longer than the TTL.
func ExampleLoaderOptions_staleFor() {
	// Works the same with Redis, for the whole fleet.
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	down := false
	prices, _ := cacheaside.NewLoader(cache, "price", func(context.Context, string) (float64, error) {
		if down {
			return 0, errors.New("connection refused")
		}
		return 9.90, nil
		// Cacheaside.Forever: without an end.
	}, &cacheaside.LoaderOptions{TTL: 10 * time.Millisecond, StaleFor: time.Hour})
	ctx := context.Background()
	prices.Get(ctx, "tea")

	down = true
	time.Sleep(20 * time.Millisecond)
	fmt.Println(prices.Get(ctx, "tea"))
	fmt.Println("stale:", prices.Stats().Stale)

	prices.Invalidate(ctx, "tea") // an invalidated value is never served
	_, err := prices.Get(ctx, "tea")
	fmt.Println(err != nil)
	// Output:
	// 9.9 <nil>
	// stale: 1
	// true
}

// With SoftTimeout, a caller that finds a stale value waits a little for the new one.
func ExampleLoaderOptions_softTimeout() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	version, slow := 0, make(chan struct{})
	pages, _ := cacheaside.NewLoader(cache, "page", func(context.Context, string) (int, error) {
		if version++; version == 2 {
			<-slow
		}
		return version, nil
	}, &cacheaside.LoaderOptions{TTL: time.Minute, StaleFor: time.Hour, SoftTimeout: 100 * time.Millisecond})
	ctx := context.Background()
	fmt.Println(pages.Get(ctx, "/"))

	pages.Expire(ctx, "/") // as if the TTL had passed
	// The load takes longer than 100 ms and continues in the background.
	fmt.Println(pages.Get(ctx, "/"))

	close(slow)
	for v := 0; v != 2; v, _ = pages.Get(ctx, "/") { // each Get waits up to 100 ms
	}
	fmt.Println(pages.Get(ctx, "/"))
	// Output:
	// 1 <nil>
	// 1 <nil>
	// 2 <nil>
}

// Reads of a value that is about to expire reload it in the background. A slow load starts earlier
// (XFetch). So readers of a hot key never meet an expired value.
func ExampleLoaderOptions_earlyRefresh() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	reports, _ := cacheaside.NewLoader(cache, "report", func(context.Context, int) (string, error) {
		time.Sleep(20 * time.Millisecond)
		return "a long one", nil
	}, &cacheaside.LoaderOptions{TTL: time.Second, EarlyRefresh: 2}) // twice as early as by default
	reports.Get(context.Background(), 1)
	for reports.Stats().EarlyRefreshes == 0 {
		reports.Get(context.Background(), 1)
		time.Sleep(time.Millisecond)
	}
	fmt.Println("reloaded early")
	// Output: reloaded early
}

// A group of pages that is read all the time is expired instead of invalidated: no caller waits for
// the new pages.
func ExampleLoader_ExpireGroup() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, _ := cacheaside.New(rdb, patient)
	defer cache.Close()
	var price atomic.Int64
	price.Store(17)
	pages, _ := cacheaside.NewLoader(cache, "page", func(_ context.Context, no int) (string, error) {
		return fmt.Sprint("page ", no, ": ", price.Load()), nil
	}, &cacheaside.LoaderOptions{
		Groups: cacheaside.GroupsOf(func(int, string) []string { return []string{"category:books"} }),
	})
	ctx := context.Background()
	fmt.Println(pages.Get(ctx, 1))
	price.Store(18)
	if err := pages.ExpireGroup(ctx, "category:books"); err != nil {
		panic(err)
	}
	fmt.Println(pages.Get(ctx, 1)) // returns immediately; the page is reloaded in the background
	for v := ""; v != "page 1: 18"; v, _ = pages.Get(ctx, 1) {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(pages.Get(ctx, 1))
	// Output:
	// page 1: 17 <nil>
	// page 1: 17 <nil>
	// page 1: 18 <nil>
}

// Expire keeps serving the cached value until it has been loaded again.
func ExampleLoader_Expire() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, _ := cacheaside.New(rdb, patient)
	defer cache.Close()
	votes := 17
	counts, _ := cacheaside.NewLoader(cache, "votes",
		func(context.Context, string) (int, error) { return votes, nil }, nil)
	ctx := context.Background()
	fmt.Println(counts.Get(ctx, "ada"))
	votes++
	if err := counts.Expire(ctx, "ada"); err != nil {
		panic(err)
	}
	// Returns immediately; the value is reloaded in the background.
	fmt.Println(counts.Get(ctx, "ada"))
	for v := 0; v != 18; v, _ = counts.Get(ctx, "ada") {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(counts.Get(ctx, "ada"))
	// Output:
	// 17 <nil>
	// 17 <nil>
	// 18 <nil>
}
