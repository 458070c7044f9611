package redlock_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// scripted is a hook by which the requests of a client for lock "a" take place, and are answered,
// when a test wants them to.
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

// hooked is a locker that has met all nodes, and has a hook at the last, whose client it returns
// too.
func (f *five) hooked(o *lock.LockerOptions, of func(s string, next func() error) error) (*lock.Locker, *redlock.Watched, *redis.Client) {
	f.Helper()
	clients := f.clients(true)
	last := clients[4].Options()
	last.DialerRetries, last.MaxRetries = 1, -1
	clients[4] = clientWith(f.T, last)
	clients[4].AddHook(scripted{of})
	l, w := f.watched(clients, o)
	return l, w, clients[4]
}

func is(hash string, scripts ...conn.Script) bool {
	return slices.ContainsFunc(scripts, func(s conn.Script) bool { return s.Hash == hash })
}

// A node that finds nothing to free may get the request for the lock later, also if its grant is
// known before the answers of those that were to free it.
func TestRedlockFreedTooEarly(t *testing.T) {
	f := newFive(t)
	const last = 4
	asking, freeing := make(chan struct{}), make(chan struct{}, 100)
	var r redlock.Round
	_, w, _ := f.hooked(patient(), func(s string, next func() error) error {
		switch {
		case is(s, redlock.Acquire): // it arrives when two have found nothing
			close(asking)
			for range 2 {
				testenv.Receive(t, "a request to free it", freeing)
			}
		case is(s, redlock.Release): // the answers arrive when the grant is known
			defer func() {
				freeing <- struct{}{}
				testenv.Receive(t, "the grant", r.Known(last))
			}()
		}
		return next()
	})
	r = redlock.NewRound(w, "a", testenv.Hang)
	granted := make(chan bool, 1)
	go func() {
		yes, err := r.Vote(t.Context(), last)
		granted <- yes && err == nil
	}()
	testenv.Receive(t, "the request for the lock", asking)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if err := r.Free(t.Context(), last); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if !<-granted || f.held(last) != 1 {
		t.Fatal("it was not granted")
	}
	r.Settle(last)
	if f.held(last) != 0 {
		t.Error("it is left")
	}
}

// Clocks that were set ahead since they were read cost one round, not the lock.
func TestRedlockClocksSetAhead(t *testing.T) {
	f := newFive(t)
	l, w := f.watched(f.clients(false), patient())
	for i := range 3 {
		w.ClockBehind(i, time.Hour)
	}
	lease, err := l.TryAcquire(t.Context(), "a", nil)
	f.check(err)
	f.check(lease.Release())
	f.free()
}

// A node to which there is no connection has nothing of a lock, and is not asked again and again
// for it.
func TestRedlockNodeRefusesConnections(t *testing.T) {
	f := newFive(t)
	const last = 4
	refused := func(err error) bool {
		op, ok := errors.AsType[*net.OpError](err)
		return ok && op.Op == "dial"
	}
	var asked atomic.Int32 // to extend or to free the lock; the token may be sent before the refusal is known
	l, w, client := f.hooked(patient(), func(s string, next func() error) error {
		if is(s, redlock.Extend, redlock.Release) {
			asked.Add(1)
		}
		return next()
	})
	f.proxies[last].Cut()
	testenv.Eventually(t, "it refuses connections", func() bool { return refused(client.Ping(t.Context()).Err()) })
	var lease *lock.Lease
	testenv.Eventually(t, "the node was asked, in vain", func() bool { // where its turn comes when the others have voted, it is not
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
	f.check(l.Close()) // waits for what is under way
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests for nothing", n)
	}
}
