package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// miniFive are five embedded servers. Each call makes clients of its own.
func miniFive(t testing.TB) func(t testing.TB) []*redis.Client {
	var first []*redis.Client
	for range 5 {
		_, client := testenv.Mini(t)
		first = append(first, client)
	}
	return func(t testing.TB) (clients []*redis.Client) {
		for i, c := range first {
			o := *c.Options()
			o.Addr, o.ContextTimeoutEnabled, o.MaxRetries = fmt.Sprintf("mini%d:6379", i), true, -1
			clients = append(clients, locktest.ClientWith(t, &o))
		}
		return clients
	}
}

// heldAt counts the locks of this name.
func heldAt(t testing.TB, clients []*redis.Client, name string) (n int) {
	for _, c := range clients {
		found, err := c.Exists(context.WithoutCancel(t.Context()), "lock:{"+name+"}").Result()
		locktest.Want(t, "exists", err, nil)
		n += int(found)
	}
	return n
}

// tardyNode is a hook by which all commands of a client take so long, and no longer than their
// contexts; less than zero: as long as these.
type tardyNode struct{ takes atomic.Int64 }

func (*tardyNode) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *tardyNode) wait(ctx context.Context) error {
	takes := time.Duration(h.takes.Load())
	if takes == 0 {
		return nil
	}
	t := time.NewTimer(takes)
	defer t.Stop()
	over := t.C
	if takes < 0 {
		over = nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *tardyNode) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.wait(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h *tardyNode) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// slow returns what has nodes take so long for all commands: those that are named, or all if none
// is.
func slow(clients []*redis.Client, nodes ...int) (set func(time.Duration)) {
	var hooks []*tardyNode
	for i, c := range clients {
		if len(nodes) == 0 || slices.Contains(nodes, i) {
			h := new(tardyNode)
			c.AddHook(h)
			hooks = append(hooks, h)
		}
	}
	return func(takes time.Duration) {
		for _, h := range hooks {
			h.takes.Store(int64(takes))
		}
	}
}

const never = time.Duration(-1)

// TestRedlockTimes: a node that hangs delays nobody; without a majority each request ends at its
// time-out, and a cancelled Acquire at once.
func TestRedlockTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		five := miniFive(t)
		clients, direct := five(t), five(t)
		one, others := slow(clients, 4), slow(clients, 2, 3)
		o := lock.LockerOptions{TTL: 5 * time.Second, Timeout: 400 * time.Millisecond}
		l := locktest.Closed(t)(redlock.New(clients, &o))
		acquire := func(name string) *lock.Lease {
			t.Helper()
			lease, err := l.Acquire(t.Context(), name, &lock.Options{Fixed: true})
			locktest.Want(t, "acquire", err, nil)
			return lease
		}
		acquire("warm").Release()
		at := func(what string, min, max time.Duration, f func()) {
			t.Helper()
			if d := took(f); d < min || d > max {
				t.Errorf("%s took %v, not %v to %v", what, d, min, max)
			}
		}
		held := acquire("held")

		one(never)
		at("acquire, extend and release beside one that hangs", 0, 0, func() {
			lease := acquire("a")
			locktest.Want(t, "extend", lease.Extend(t.Context()), nil)
			locktest.Want(t, "release", lease.Release(), nil)
		})

		others(never)
		failed := func(err error) {
			t.Helper()
			if err == nil || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrLost) {
				t.Error(err)
			}
		}
		at("acquire without a majority", o.Timeout, o.Timeout, func() {
			_, err := l.Acquire(t.Context(), "a", nil)
			failed(err)
		})
		ctx, cancel := context.WithTimeoutCause(t.Context(), 40*time.Millisecond, errCancelled)
		defer cancel()
		at("a cancelled acquire", 40*time.Millisecond, 40*time.Millisecond, func() {
			_, err := l.Acquire(ctx, "a", nil)
			locktest.Want(t, "acquire", err, errCancelled)
		})
		synctest.Wait()
		if n := heldAt(t, direct[:2], "a"); n > 0 {
			t.Errorf("%d votes are left on the nodes that answer", n)
		}
		at("extend without a majority", o.Timeout, o.Timeout, func() { failed(held.Extend(t.Context())) })
		at("release without a majority", o.Timeout, 2*o.Timeout, func() { failed(held.Release()) })
		one(0)
		others(0)
		time.Sleep(2 * time.Second)
		if n := heldAt(t, direct, "a") + heldAt(t, direct, "held"); n > 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

var errCancelled = errors.New("cancelled")

func redsyncOf(clients []*redis.Client) *redsync.Redsync {
	var pools []redsyncredis.Pool
	for _, c := range clients {
		pools = append(pools, goredis.NewPool(c))
	}
	return redsync.New(pools...)
}

// A node that needs 80 ms is healthy. With a life of a second, redsync gives it 50.
func TestRedlockSlowNodes(t *testing.T) {
	const takes, ttl = 80 * time.Millisecond, time.Second
	synctest.Test(t, func(t *testing.T) {
		clients := miniFive(t)(t)
		set := slow(clients)
		l := locktest.Closed(t)(redlock.New(clients, &lock.LockerOptions{TTL: ttl}))
		warm, err := l.Acquire(t.Context(), "warm", nil)
		locktest.Want(t, "acquire", err, nil)
		locktest.Want(t, "release", warm.Release(), nil)
		set(takes)
		if redsyncOf(clients).NewMutex("a", redsync.WithExpiry(ttl)).TryLock() == nil {
			t.Error("locked: it has another time-out, by now?")
		}
		lease, err := l.Acquire(t.Context(), "b", &lock.Options{NoToken: true})
		locktest.Want(t, "acquire", err, nil)
		locktest.Want(t, "release", lease.Release(), nil)
	})
}

// redsync does not extend a lock, and has nothing by which a late holder can be told from the
// present one.
func TestRedlockHoldsAndCounts(t *testing.T) {
	const ttl = 300 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		five := miniFive(t)
		rs := redsyncOf(five(t))
		locktest.Want(t, "lock", rs.NewMutex("a", redsync.WithExpiry(ttl)).Lock(), nil)
		l := locktest.Closed(t)(redlock.New(five(t), &lock.LockerOptions{TTL: ttl}))
		lease, err := l.Acquire(t.Context(), "b", nil)
		locktest.Want(t, "acquire", err, nil)
		time.Sleep(ttl + ttl/2)
		locktest.Want(t, "lock, while the first is at work", rs.NewMutex("a", redsync.WithExpiry(ttl)).TryLock(), nil)
		locktest.Want(t, "the lock is extended", lease.Context().Err(), nil)
		locktest.Want(t, "release", lease.Release(), nil)
		next, err := l.Acquire(t.Context(), "b", nil)
		locktest.Want(t, "acquire", err, nil)
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		locktest.Want(t, "release", next.Release(), nil)
	})
}

// handover is how long after a release the next has the lock, on average.
func handover(t *testing.T, lock func() (release func())) time.Duration {
	const n = 4
	var sum time.Duration
	for range n {
		release := lock()
		got := make(chan time.Time)
		go func() {
			release := lock()
			got <- time.Now()
			release()
		}()
		time.Sleep(30 * time.Millisecond)
		began := time.Now()
		release()
		sum += (<-got).Sub(began)
	}
	return sum / n
}

// redsync asks again and again, at intervals; a caller that waits for a Redlock is told.
func TestRedlockWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		five := miniFive(t)
		rs := redsyncOf(five(t))
		polled := handover(t, func() func() {
			m := rs.NewMutex("a")
			locktest.Want(t, "lock", m.Lock(), nil)
			return func() { m.Unlock() }
		})
		lockers := make(chan *lock.Locker, 2) // they take turns, as two processes
		lockers <- locktest.Closed(t)(redlock.New(five(t), nil))
		lockers <- locktest.Closed(t)(redlock.New(five(t), nil))
		woken := handover(t, func() func() {
			l := <-lockers
			lease, err := l.Acquire(t.Context(), "b", nil)
			if err != nil {
				t.Error(err)
				return func() {}
			}
			return func() { lease.Release(); lockers <- l }
		})
		t.Logf("handed over after %v by polling, %v by messages", polled, woken)
		if woken > 10*time.Millisecond || polled < woken {
			t.Errorf("handed over after %v by messages, %v by polling", woken, polled)
		}
	})
}
