package redlock_test

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// hooked returns a locker that has contacted all nodes, and the last node's client, which has a
// hook.
func (f *five) hooked(
	o *lock.Options, of func(s string, next func() error) error,
) (*lock.Locker, *redlock.Watched, *redis.Client) {
	f.Helper()
	clients := f.clients(true)
	last := clients[4].Options()
	last.DialerRetries, last.MaxRetries = 1, -1
	clients[4] = locktest.ClientWith(f.T, last)
	clients[4].AddHook(locktest.Scripted{Wrap: of})
	l, w := f.watched(clients, o)
	return l, w, clients[4]
}

// A request for the lock that reaches a node after the request to free it is refused, because no
// later request would free it.
func TestRedlockRequestAfterReleaseIsRefused(t *testing.T) {
	f := newFive(t)
	const last = 4
	asking, freed := make(chan struct{}), make(chan struct{})
	_, w, _ := f.hooked(locktest.Patient(), func(s string, next func() error) error {
		if locktest.Is(s, redlock.Acquire) {
			close(asking)
			testenv.Receive(t, "the request to free it", freed)
		}
		return next()
	})
	r := redlock.NewRound(w, "a", testenv.Hang)
	granted := make(chan bool, 1)
	go func() {
		yes, err := r.Vote(t.Context(), last)
		granted <- yes || err == nil
	}()
	testenv.Receive(t, "the request for the lock", asking)
	f.check(r.Free(t.Context(), last))
	close(freed)
	if <-granted || f.held(last) != 0 {
		t.Error("the late request is granted")
	}
}

// Clocks that were set ahead after they were read cost one round, not the lock.
func TestRedlockClocksSetAhead(t *testing.T) {
	f := newFive(t)
	l, w := f.watched(f.clients(false), locktest.Patient())
	for i := range 3 {
		w.ClockBehind(i, time.Hour)
	}
	lease, err := l.TryAcquire(t.Context(), "a", nil)
	f.check(err)
	f.check(lease.Release())
	f.free()
}

// A node without a connection has no part of a lock, so it receives no requests to extend or free
// it.
func TestRedlockNodeRefusesConnections(t *testing.T) {
	f := newFive(t)
	const last = 4
	refused := func(err error) bool {
		op, ok := errors.AsType[*net.OpError](err)
		return ok && op.Op == "dial"
	}
	// Requests to extend or free the lock; the token may be sent before the failure is known.
	var asked atomic.Int32
	l, w, client := f.hooked(locktest.Patient(), func(s string, next func() error) error {
		if locktest.Is(s, redlock.Extend, redlock.Release) {
			asked.Add(1)
		}
		return next()
	})
	f.proxies[last].Cut()
	testenv.Eventually(t, "it refuses connections", func() bool { return refused(client.Ping(t.Context()).Err()) })
	var lease *lock.Lease
	// The node is skipped if the others have voted before its turn.
	testenv.Eventually(t, "a request to the node has failed", func() bool {
		var err error
		lease, err = l.Acquire(t.Context(), "a", nil)
		f.check(err)
		for {
			switch voted, known := w.Known(last); {
			case !voted:
				f.check(lease.Release())
				f.free(0, 1, 2, 3)
				return false
			case known:
				return true
			}
			time.Sleep(time.Millisecond)
		}
	})
	f.check(lease.Extend(t.Context()))
	f.check(lease.Release())
	f.free(0, 1, 2, 3)
	f.check(l.Close()) // waits for requests in flight
	if n := asked.Load(); n > 0 {
		t.Errorf("%d unnecessary requests", n)
	}
}
