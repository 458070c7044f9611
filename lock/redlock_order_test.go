package lock_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/lock"
)

// scripted is a hook by which the requests of a client for lock "a" take place, and are answered, when a test wants them to.
type scripted struct {
	of func(s string, next func() error) error // s: the hash of the script
}

func (scripted) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h scripted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || !slices.Contains(cmd.Args(), any("lock:{a}")) {
			return next(ctx, cmd)
		}
		return h.of(cmd.Args()[1].(string), func() error { return next(ctx, cmd) })
	}
}

func (scripted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// hooked is a locker that has met all nodes, and has a hook at the last, whose client it returns too.
func (f *five) hooked(o *lock.LockerOptions, of func(s string, next func() error) error) (*lock.Locker, *redis.Client) {
	f.Helper()
	clients := f.clients(true)
	last := clients[4].Options()
	last.DialerRetries, last.MaxRetries = 1, -1
	clients[4] = clientWith(f.T, last)
	clients[4].AddHook(scripted{of})
	l := closed(f.T)(lock.NewRedlock(clients, o))
	f.warm(l)
	return l, clients[4]
}

func until(done func() bool, limit time.Duration) bool {
	for end := time.Now().Add(limit); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func is(hash string, scripts ...conn.Script) bool {
	return slices.ContainsFunc(scripts, func(s conn.Script) bool { return s.Hash == hash })
}

// A node that finds nothing to free may get the request for the lock later, also if its grant is known before the answers of those that were to free it.
func TestRedlockFreedTooEarly(t *testing.T) {
	f := newFive(t)
	var freed atomic.Int32
	var granted atomic.Bool
	l, _ := f.hooked(&lock.LockerOptions{TTL: 20 * time.Second, Timeout: 2 * time.Second}, func(s string, next func() error) error {
		switch {
		case is(s, lock.RedlockAcquire):
			until(func() bool { return freed.Load() > 1 }, time.Second)
			defer granted.Store(true)
		case is(s, lock.RedlockRelease):
			defer func() {
				freed.Add(1)
				until(granted.Load, time.Second)
				time.Sleep(20 * time.Millisecond) // for that to be known
			}()
		}
		return next()
	})
	lease, err := l.Acquire(t.Context(), "a", nil)
	f.check(err)
	f.check(lease.Release())
	if !until(granted.Load, 2*time.Second) {
		t.Fatal("the last node was not asked")
	}
	f.free(2 * time.Second)
}

// A request that came too late is not sent once more when its round is over, and what the node had of it was found to be nothing.
func TestRedlockNotAskedAgain(t *testing.T) {
	f := newFive(t)
	var asked, freed atomic.Int32
	l, _ := f.hooked(&lock.LockerOptions{TTL: 20 * time.Second, Timeout: 2 * time.Second}, func(s string, next func() error) error {
		if is(s, lock.RedlockRelease) {
			defer freed.Add(1)
		}
		if !is(s, lock.RedlockAcquire) || asked.Add(1) > 1 {
			return next()
		}
		defer func() { // that it came too late is known when the node has been asked to free it
			until(func() bool { return freed.Load() > 0 }, time.Second)
			time.Sleep(20 * time.Millisecond)
		}()
		return next()
	})
	lock.RedlockClockBehind(l, 4, time.Hour)
	for tries := 0; asked.Load() == 0 && tries < 50; tries++ { // on a busy machine all may be over before that node's turn comes
		lease, err := l.Acquire(t.Context(), "a", nil)
		f.check(err)
		f.check(lease.Release())
	}
	f.check(l.Close()) // waits for what is under way
	if n := f.held(0, 1, 2, 3, 4); n > 0 {
		t.Errorf("%d locks left", n)
	}
	if asked.Load() != 1 || freed.Load() == 0 {
		t.Errorf("asked %d times, freed %d times", asked.Load(), freed.Load())
	}
}

// A node to which there is no connection has nothing of a lock, and is not asked again and again for it.
func TestRedlockNodeRefusesConnections(t *testing.T) {
	f := newFive(t)
	refused := func(err error) bool {
		op, ok := errors.AsType[*net.OpError](err)
		return ok && op.Op == "dial"
	}
	var known atomic.Bool
	var others atomic.Int32
	l, last := f.hooked(nil, func(s string, next func() error) error {
		err := next()
		if is(s, lock.RedlockAcquire) && refused(err) {
			time.AfterFunc(20*time.Millisecond, func() { known.Store(true) })
		} else {
			others.Add(1)
		}
		return err
	})
	f.proxies[4].Cut()
	if !until(func() bool { return refused(last.Ping(t.Context()).Err()) }, 2*time.Second) {
		t.Fatal("it does not refuse connections")
	}
	lease, err := l.Acquire(t.Context(), "a", nil)
	f.check(err)
	if !until(known.Load, 2*time.Second) {
		t.Fatal("the node was not asked")
	}
	sent := others.Load() // the token, perhaps
	f.check(lease.Extend(t.Context()))
	f.check(lease.Release())
	f.free(2*time.Second, 0, 1, 2, 3)
	time.Sleep(50 * time.Millisecond)
	if n := others.Load() - sent; n > 0 {
		t.Errorf("%d requests for nothing", n)
	}
}
