package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/lock"
)

// Many read a catalog together; one rewrites it alone.
func ExampleNewReadWrite() {
	locker, _ := lock.NewLocal(nil) // or NewRedis, mysqllock, pglock
	defer locker.Close()
	catalogs, err := lock.NewReadWrite(locker)
	if err != nil {
		panic(err) // this service has no read-write locks
	}
	ctx := context.Background()
	one, _ := catalogs.AcquireRead(ctx, "catalog", nil)
	two, _ := catalogs.AcquireRead(ctx, "catalog", nil)
	_, err = catalogs.AcquireWrite(ctx, "catalog", &lock.AcquireOptions{Try: true})
	fmt.Println(errors.Is(err, lock.ErrHeld))
	fmt.Println(one.Release(), two.Release())
	lease, err := catalogs.AcquireWrite(ctx, "catalog", nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(lease.Do(func(ctx context.Context, token int64) error {
		fmt.Println("rewritten")
		return nil
	}))
	// Output:
	// true
	// <nil> <nil>
	// rewritten
	// <nil>
}

// At most two exports run at the same time, in all processes.
func ExampleNewSemaphore() {
	locker, _ := lock.NewLocal(nil) // or NewRedis, mysqllock, pglock
	defer locker.Close()
	exports, err := lock.NewSemaphore(locker, 2)
	if err != nil {
		panic(err) // this service has no semaphores
	}
	ctx := context.Background()
	first, _ := exports.Acquire(ctx, "export", nil)
	second, _ := exports.Acquire(ctx, "export", nil)
	_, err = exports.Acquire(ctx, "export", &lock.AcquireOptions{Wait: 10 * time.Millisecond})
	fmt.Println(errors.Is(err, lock.ErrHeld))
	fmt.Println(first.Release(), second.Release())
	// Output:
	// true
	// <nil> <nil>
}

// A transfer locks both accounts. Transfers in opposite directions do not wait for each other
// forever.
func ExampleLocker_AcquireAll() {
	locker, _ := lock.NewLocal(nil) // or any other Locker
	defer locker.Close()
	locks, err := locker.AcquireAll(context.Background(), []string{"account:7", "account:42"}, nil)
	if err != nil {
		panic(err)
	}
	ctx := locks.Context() // ends when either lock is lost
	fmt.Println(ctx.Err(), locks.Token("account:7") > 0)
	fmt.Println(locks.Release())
	// Output:
	// <nil> true
	// <nil>
}

// Every process calls Once at night; one of them makes the report.
func ExampleLocker_Once() {
	locker, _ := lock.NewLocal(nil) // or NewRedis, mysqllock, pglock
	defer locker.Close()
	report := func(ctx context.Context, token int64) error {
		fmt.Println("the report")
		return nil
	}
	for range 3 {
		err := locker.Once(context.Background(), "report 2026-11-29", 7*24*time.Hour, report)
		fmt.Println(errors.Is(err, lock.ErrHeld))
	}
	// Output:
	// the report
	// false
	// true
	// true
}

// An operator finds out who holds a lock, and takes it away.
func ExampleLocker_Inspect() {
	locker, _ := lock.NewLocal(&lock.Options{Label: "worker-3"}) // or NewRedis, mysqllock, pglock
	defer locker.Close()
	ctx := context.Background()
	lease, err := locker.Acquire(ctx, "import", nil)
	if err != nil {
		panic(err)
	}
	state, err := locker.Inspect(ctx, "import")
	if err != nil {
		panic(err)
	}
	for _, holder := range state.Holders {
		fmt.Println(holder.Label, holder.Token == lease.Token(), locker.Break(ctx, "import", holder.Token))
	}
	fmt.Println(errors.Is(lease.Release(), lock.ErrLost))
	// Output:
	// worker-3 true <nil>
	// true
}
