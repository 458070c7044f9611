//go:build accept

package lock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// The baseline: the two scripts that every lock uses, on a bare client.
var (
	bareAcquire = redis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0`)
	bareRelease = redis.NewScript(
		`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

func bare(ctx context.Context, c *redis.Client) error {
	if err := bareAcquire.Run(ctx, c, []string{"bare"}, "an-id-of-26-characters-as-is", 10_000).Err(); err != nil {
		return err
	}
	return bareRelease.Run(ctx, c, []string{"bare"}, "an-id-of-26-characters-as-is").Err()
}

// quickClient returns a client that keeps deadlines by itself, as the documentation recommends.
func quickClient(t testing.TB, r *testenv.Redis) *redis.Client {
	o := r.Options()
	o.ContextTimeoutEnabled = true
	return locktest.ClientWith(t, o)
}

// TestCostOfALock compares an uncontended Acquire and Release with two raw script calls, in turns:
// the same scripts on a bare client, and the shortest possible lock scripts.
func TestCostOfALock(t *testing.T) {
	r := testenv.SharedRedis(t)
	c := quickClient(t, r)
	l := locktest.Closed(t)(lock.NewRedis(quickClient(t, r), nil))
	runs, n := 24, 500
	if !testenv.Accepting {
		runs, n = 2, 100
	}
	acquired(t, l, nil).Release() // loads the scripts
	var same, shortest []float64
	var floor time.Duration
	timed := func(f func() error) time.Duration {
		began := time.Now()
		for range n {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
		return time.Since(began)
	}
	for range runs {
		floor = timed(func() error { return lock.BareScripts(t.Context(), c) })
		took := timed(func() error {
			lease, err := l.Acquire(t.Context(), "a", nil)
			if err != nil {
				return err
			}
			return lease.Release()
		})
		same = append(same, float64(took)/float64(floor))
		shortest = append(shortest, float64(took)/float64(timed(func() error { return bare(t.Context(), c) })))
	}
	of, least := median(same), median(shortest)
	t.Logf("medians of %d runs of %d in turns: %.2f of its own two scripts by a bare client (%.2f to %.2f), which "+
		"took %v; %.2f of the two shortest", runs, n, of, same[0], same[runs-1], floor/time.Duration(n), least)
	if testenv.Accepting && of > 1.1 {
		t.Errorf("Acquire and Release take %.2f times as long as two raw script calls", of)
	}
}

// TestCostOfKinds compares uncontended operations with the same commands by a bare client, in
// turns.
func TestCostOfKinds(t *testing.T) {
	r := testenv.SharedRedis(t)
	c := quickClient(t, r)
	l := locktest.Closed(t)(lock.NewRedis(quickClient(t, r), nil))
	rw, err := lock.NewReadWrite(l)
	locktest.Want(t, "read-write lock", err, nil)
	sem, err := lock.NewSemaphore(l, 10)
	locktest.Want(t, "semaphore", err, nil)
	release := func(lease *lock.Lease, err error) error {
		if err != nil {
			return err
		}
		return lease.Release()
	}
	names := []string{"a", "b", "c"}
	for _, k := range []struct {
		name       string
		ours, bare func(ctx context.Context) error
	}{
		{"reader", func(ctx context.Context) error { return release(rw.AcquireRead(ctx, "a", nil)) },
			func(ctx context.Context) error { return lock.BareShared(ctx, c, 1000) }},
		{"writer", func(ctx context.Context) error { return release(rw.AcquireWrite(ctx, "a", nil)) },
			func(ctx context.Context) error { return lock.BareShared(ctx, c, 0) }},
		{"permit", func(ctx context.Context) error { return release(sem.Acquire(ctx, "a", nil)) },
			func(ctx context.Context) error { return lock.BareShared(ctx, c, 10) }},
		{"three locks", func(ctx context.Context) error {
			locks, err := l.AcquireAll(ctx, names, nil)
			if err != nil {
				return err
			}
			return locks.Release()
		}, func(ctx context.Context) error { return lock.BareTogether(ctx, c, names) }},
		{"inspect", func(ctx context.Context) error { _, err := l.Inspect(ctx, "a"); return err },
			func(ctx context.Context) error { return lock.BareInspect(ctx, c) }},
	} {
		locktest.Want(t, k.name, errors.Join(k.ours(t.Context()), k.bare(t.Context())), nil) // loads the scripts
		var ratios []float64
		var floor time.Duration
		for range 15 {
			floor = timed(t, 200, k.bare)
			ratios = append(ratios, float64(timed(t, 200, k.ours))/float64(floor))
		}
		of := median(ratios)
		t.Logf("%s: median of 15 runs of 200 in turns: %.2f of its own commands by a bare client (%.2f to %.2f), "+
			"which took %v", k.name, of, ratios[0], ratios[len(ratios)-1], floor/200)
	}
}

func timed(t *testing.T, n int, f func(ctx context.Context) error) time.Duration {
	began := time.Now()
	for range n {
		if err := f(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(began)
}

// median sorts its argument.
func median(of []float64) float64 {
	slices.Sort(of)
	return (of[len(of)/2] + of[(len(of)-1)/2]) / 2
}

// TestCostOfContention lets 50 workers hold the lock 4 times each, for a millisecond. It compares
// their time with the minimum: one worker with 200 times a millisecond and two round trips on a
// bare client. (Alternating round trips and sleeps take longer than a busy loop of round trips,
// whose time is logged too.)
func TestCostOfContention(t *testing.T) {
	r := testenv.SharedRedis(t)
	for _, processes := range []int{1, 5} {
		var lockers []*lock.Locker
		for range processes {
			lockers = append(lockers, locktest.Closed(t)(lock.NewRedis(quickClient(t, r), nil)))
		}
		contention(t, lockers) // connects and loads scripts
		c := quickClient(t, r)
		began := time.Now()
		for range 200 {
			if err := bare(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		busy := 200*time.Millisecond + time.Since(began)
		began = time.Now()
		for range 200 {
			if err := errors.Join(bareAcquire.Run(t.Context(), c, []string{"bare"}, "an-id", 10_000).Err(), sleep1ms(),
				bareRelease.Run(t.Context(), c, []string{"bare"}, "an-id").Err()); err != nil {
				t.Fatal(err)
			}
		}
		floor := time.Since(began)
		began = time.Now()
		gaps := contention(t, lockers)
		took := time.Since(began)
		t.Logf("%d processes: %v, %.2f of %v, %.2f of %v; from a release to the next grant p50 %v, p99 %v, longest %v",
			processes, took, float64(took)/float64(floor), floor, float64(took)/float64(busy), busy,
			gaps[len(gaps)/2], gaps[len(gaps)*99/100], gaps[len(gaps)-1])
		if testenv.Accepting && (processes == 1 && float64(took) > 1.3*float64(floor) ||
			gaps[len(gaps)*99/100] > 5*time.Millisecond) {
			t.Errorf("contention takes %v, the minimum is %v", took, floor)
		}
	}
}

func sleep1ms() error { time.Sleep(time.Millisecond); return nil }
