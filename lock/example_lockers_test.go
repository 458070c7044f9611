package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/lock"
)

// A process needs one Locker per service. Locks live for 10 s and are extended automatically.
func ExampleNewRedis() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close() // close it after the Locker
	locker, err := lock.NewRedis(rdb, &lock.Options{Prefix: "shop:lock:", TTL: time.Minute, Timeout: 15 * time.Second})
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	fmt.Println(locker.Do(context.Background(), "report", nil, func(context.Context, int64) error {
		fmt.Println("one process at a time")
		return nil
	}))
	// Output:
	// one process at a time
	// <nil>
}

// For tests, and for programs that run once.
func ExampleNewLocal() {
	locker, err := lock.NewLocal(nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	fmt.Println(locker.Do(context.Background(), "report", nil, func(context.Context, int64) error { return nil }))
	// Output: <nil>
}

// A Lease is for work that is not a single function. Its context ends before another holder can
// acquire the lock.
func ExampleLocker_Acquire() {
	locker, _ := lock.NewLocal(nil) // or any other Locker
	defer locker.Close()
	lease, err := locker.Acquire(context.Background(), "report", &lock.AcquireOptions{
		Wait: time.Second, // then Acquire returns ErrHeld
		// Then the lock is lost, so that a hanging holder does not keep it forever.
		MaxHold: 10 * time.Minute,
	})
	if err != nil {
		panic(err)
	}
	ctx := lease.Context()
	fmt.Println(ctx.Err())
	if err := lease.Release(); errors.Is(err, lock.ErrLost) {
		fmt.Println("the work was not protected to its end")
	}
	fmt.Println(context.Cause(ctx))
	// Output:
	// <nil>
	// lock: the lock was released
}

// TryAcquire is for work that can be skipped while another process does it.
func ExampleLocker_TryAcquire() {
	locker, _ := lock.NewLocal(nil) // or any other Locker
	defer locker.Close()
	ctx := context.Background()
	first, err := locker.TryAcquire(ctx, "clean up", nil)
	fmt.Println(err)
	_, err = locker.TryAcquire(ctx, "clean up", nil)
	fmt.Println(errors.Is(err, lock.ErrHeld))
	fmt.Println(first.Release())
	// Output:
	// <nil>
	// true
	// <nil>
}

// A function that holds a lock calls another one that takes the same lock: they share an owner.
func ExampleWithOwner() {
	locker, _ := lock.NewLocal(nil) // or any other Locker
	defer locker.Close()
	inner := func(ctx context.Context) error {
		return locker.Do(ctx, "account:42", nil, func(context.Context, int64) error { return nil })
	}
	outer := func(ctx context.Context) error {
		return locker.Do(ctx, "account:42", nil, func(ctx context.Context, _ int64) error { return inner(ctx) })
	}
	// Without an owner, the inner function would wait for the outer one.
	fmt.Println(outer(lock.WithOwner(context.Background())))
	// Output: <nil>
}
