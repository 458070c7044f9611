package meter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/meter"
)

// A row is written twice, the second time without an invalidation. The meter samples every write
// and finds the stale copies in Redis and in process memory.
func Example() {
	server, _ := miniredis.Run()
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	// usually nil; this timeout is for a machine that is busy with tests
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second})
	defer cache.Close()
	name := "Ada"
	users, _ := cacheaside.NewLoader(cache, "user",
		func(context.Context, int) (string, error) { return name, nil }, nil)

	m, err := meter.New(cache, &meter.Options{Share: 1, After: []time.Duration{200 * time.Millisecond}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close() // close it before the cache
	ctx := context.Background()
	look := func() meter.Result {
		for m.Stats().InFlight > 0 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2500 * time.Millisecond) // wait for the replies
		return m.Stats().Results[0]
	}

	users.Invalidate(ctx, 1) // a correct write: the meter sees the invalidation
	fmt.Println("consistent:", look().Consistent)

	users.Get(ctx, 1)
	time.Sleep(100 * time.Millisecond)
	name = "Grace"          // a write without an invalidation,
	m.Written(users.Key(1)) // reported by another source, such as a reader of the binary log
	fmt.Println("different:", look().Different)
	c, _ := m.Consistency(200 * time.Millisecond)
	fmt.Printf("%d of %d\n", c.Different, c.Samples)
	// It prints, unless the machine is so busy that checks are late:
	// consistent: 1
	// different: 1
	// 1 of 2
}
