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

// miniFive starts five embedded servers. Each call of the returned function makes new clients.
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

// heldAt counts the locks with this name.
func heldAt(t testing.TB, clients []*redis.Client, name string) (n int) {
	for _, c := range clients {
		found, err := c.Exists(context.WithoutCancel(t.Context()), "lock:{"+name+"}").Result()
		locktest.Want(t, "exists", err, nil)
		n += int(found)
	}
	return n
}

// delayedNode is a hook that delays all commands of a client, up to the end of their contexts. A
// negative delay waits for the end of the context.
type delayedNode struct{ takes atomic.Int64 }

func (*delayedNode) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *delayedNode) wait(ctx context.Context) error {
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

func (h *delayedNode) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.wait(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h *delayedNode) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// slow returns a function that delays all commands on some nodes, or on all nodes if none is named.
func slow(clients []*redis.Client, nodes ...int) (set func(time.Duration)) {
	var hooks []*delayedNode
	for i, c := range clients {
		if len(nodes) == 0 || slices.Contains(nodes, i) {
			h := new(delayedNode)
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

// TestRedlockTimes: a hanging node delays no caller. Without a majority each request ends at its
// timeout, and a cancelled Acquire ends immediately.
func TestRedlockTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		five := miniFive(t)
		clients, direct := five(t), five(t)
		one, others := slow(clients, 4), slow(clients, 2, 3)
		o := lock.Options{TTL: 5 * time.Second, Timeout: 400 * time.Millisecond}
		l := locktest.Closed(t)(redlock.New(clients, &o))
		acquire := func(name string) *lock.Lease {
			t.Helper()
			lease, err := l.Acquire(t.Context(), name, &lock.AcquireOptions{Fixed: true})
			locktest.Want(t, "acquire", err, nil)
			return lease
		}
		acquire("warm").Release()
		at := func(what string, min, max time.Duration, f func()) {
			t.Helper()
			if d := took(f); d < min || d > max {
				t.Errorf("%s takes %v, want %v to %v", what, d, min, max)
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
			t.Errorf("%d votes are left on the nodes that reply", n)
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

// A node that needs 80 ms is healthy. With a lock life of one second, redsync gives it 50 ms.
func TestRedlockSlowNodes(t *testing.T) {
	const takes, ttl = 80 * time.Millisecond, time.Second
	synctest.Test(t, func(t *testing.T) {
		clients := miniFive(t)(t)
		set := slow(clients)
		l := locktest.Closed(t)(redlock.New(clients, &lock.Options{TTL: ttl}))
		warm, err := l.Acquire(t.Context(), "warm", nil)
		locktest.Want(t, "acquire", err, nil)
		locktest.Want(t, "release", warm.Release(), nil)
		set(takes)
		if redsyncOf(clients).NewMutex("a", redsync.WithExpiry(ttl)).TryLock() == nil {
			t.Error("redsync acquires the lock: has its timeout changed?")
		}
		lease, err := l.Acquire(t.Context(), "b", &lock.AcquireOptions{NoToken: true})
		locktest.Want(t, "acquire", err, nil)
		locktest.Want(t, "release", lease.Release(), nil)
	})
}

// redsync does not extend a lock, and has no token to distinguish a late holder from the current
// one.
func TestRedlockExtendsAndCounts(t *testing.T) {
	const ttl = 300 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		five := miniFive(t)
		rs := redsyncOf(five(t))
		locktest.Want(t, "lock", rs.NewMutex("a", redsync.WithExpiry(ttl)).Lock(), nil)
		l := locktest.Closed(t)(redlock.New(five(t), &lock.Options{TTL: ttl}))
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

// handover returns the average time from a release to the next grant.
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

// redsync polls at intervals. A caller that waits for a Redlock receives a message.
func TestRedlockWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		five := miniFive(t)
		rs := redsyncOf(five(t))
		polled := handover(t, func() func() {
			m := rs.NewMutex("a")
			locktest.Want(t, "lock", m.Lock(), nil)
			return func() { m.Unlock() }
		})
		lockers := make(chan *lock.Locker, 2) // they take turns, like two processes
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
			t.Errorf("the handover takes %v with messages, %v with polling", woken, polled)
		}
	})
}
