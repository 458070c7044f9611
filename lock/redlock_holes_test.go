package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// These tests show what redsync alone does, so that it is known when what is around it is no longer needed, and what NewRedlock does.

func (f *five) redsync(bounded bool) *redsync.Redsync {
	var pools []redsyncredis.Pool
	for _, c := range f.clients(bounded) {
		pools = append(pools, goredis.NewPool(c))
	}
	return redsync.New(pools...)
}

const cancelAfter = 40 * time.Millisecond

func (f *five) cancelled() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(f.Context())
	time.AfterFunc(cancelAfter, cancel)
	return ctx, cancel
}

func TestRedlockCancelledAcquire(t *testing.T) {
	t.Run("redsync", func(t *testing.T) {
		f := newFive(t)
		f.hang(true, 2, 3, 4)
		ctx, cancel := f.cancelled()
		defer cancel()
		if err := f.redsync(true).NewMutex("a", redsync.WithExpiry(3*time.Second)).TryLockContext(ctx); err == nil {
			t.Fatal("locked")
		}
		time.Sleep(100 * time.Millisecond)
		if n := f.held(0, 1); n != 2 {
			t.Errorf("%d keys left: it frees what it has got, by now?", n)
		}
	})
	t.Run("lock", func(t *testing.T) {
		f := newFive(t)
		l := f.locker(&lock.LockerOptions{TTL: 5 * time.Second})
		within(t, 100*time.Millisecond, func() time.Duration {
			f.hang(true, 2, 3, 4)
			ctx, cancel := f.cancelled()
			defer cancel()
			began := time.Now()
			if _, err := l.Acquire(ctx, "a", nil); err == nil || time.Since(began) > 2*time.Second {
				t.Fatalf("%v after %v", err, time.Since(began))
			}
			left := f.free(2*time.Second, 0, 1)
			f.hang(false, 2, 3, 4) // what was held up arrives
			time.Sleep(20 * time.Millisecond)
			t.Logf("free after %v on the nodes that answer, and %v on those that hung", left, f.free(4*time.Second))
			return left
		})
	})
}

func TestRedlockNodeHangs(t *testing.T) {
	const patience = 450 * time.Millisecond
	t.Run("redsync", func(t *testing.T) {
		f := newFive(t)
		m := f.redsync(true).NewMutex("a", redsync.WithExpiry(6*time.Second)) // of which a time-out would be a twentieth
		f.check(m.Lock())
		f.hang(true, 4)
		for name, op := range map[string]func(context.Context) (bool, error){"extend": m.ExtendContext, "unlock": m.UnlockContext} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if d := took(func() { op(ctx) }); d < patience-50*time.Millisecond {
				t.Errorf("%s took %v: it has a time-out of its own, by now?", name, d)
			}
		}
		f.hang(false, 4)
	})
	t.Run("lock", func(t *testing.T) {
		f := newFive(t)
		o := lock.LockerOptions{TTL: 5 * time.Second, Timeout: 400 * time.Millisecond}
		l := f.locker(&o)
		f.hang(true, 4)
		var acquire, extend, release time.Duration
		within(t, o.Timeout, func() time.Duration {
			var lease *lock.Lease
			var err error
			acquire = took(func() { lease, err = l.Acquire(t.Context(), "a", nil) })
			f.check(err)
			extend = took(func() { f.check(lease.Extend(t.Context())) })
			release = took(func() { f.check(lease.Release()) })
			t.Logf("one of five hangs: acquire %v, extend %v, release %v", acquire, extend, release)
			f.free(2*time.Second, 0, 1, 2, 3)
			return max(acquire, extend, release)
		})
		f.hang(false, 4)
		f.free(4 * time.Second)
	})
}

// A node that needs 80 ms is healthy. With a life of a second, redsync gives it 50.
func TestRedlockSlowNodes(t *testing.T) {
	const slow, ttl = 80 * time.Millisecond, time.Second
	slowDown := func(f *five) {
		for _, p := range f.proxies {
			p.OnRequest(func([]byte) testenv.Action { return testenv.Delay(slow) })
		}
	}
	t.Run("redsync", func(t *testing.T) {
		f := newFive(t)
		rs := f.redsync(true)
		f.check(rs.NewMutex("warm").Lock())
		slowDown(f)
		if err := rs.NewMutex("a", redsync.WithExpiry(ttl)).TryLock(); err == nil {
			t.Error("locked: it has another time-out, by now?")
		}
	})
	t.Run("lock", func(t *testing.T) {
		f := newFive(t)
		l := f.locker(&lock.LockerOptions{TTL: ttl})
		slowDown(f)
		lease, err := l.Acquire(t.Context(), "a", &lock.Options{NoToken: true})
		f.check(err)
		f.check(lease.Release())
	})
}

// redsync does not extend a lock, and has nothing by which a late holder can be told from the present one.
func TestRedlockHoldsAndCounts(t *testing.T) {
	const ttl = 300 * time.Millisecond
	f := newFive(t)
	rs := f.redsync(false)
	first := rs.NewMutex("a", redsync.WithExpiry(ttl))
	f.check(first.Lock())
	l := f.locker(&lock.LockerOptions{TTL: ttl})
	lease, err := l.Acquire(t.Context(), "b", nil)
	f.check(err)
	time.Sleep(ttl + ttl/2)
	f.check(rs.NewMutex("a", redsync.WithExpiry(ttl)).TryLock()) // while the first is at work
	if lease.Context().Err() != nil {
		t.Error("the lock was not extended")
	}
	f.check(lease.Release())
	next, err := l.Acquire(t.Context(), "b", nil)
	f.check(err)
	if next.Token() <= lease.Token() {
		t.Errorf("token %d after %d", next.Token(), lease.Token())
	}
	f.check(next.Release())
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

func TestRedlockWakes(t *testing.T) {
	f := newFive(t)
	rs := f.redsync(false)
	polled := handover(t, func() func() {
		m := rs.NewMutex("a")
		if err := m.Lock(); err != nil {
			t.Error(err)
		}
		return func() { m.Unlock() }
	})
	lockers := make(chan *lock.Locker, 2) // they take turns, as two processes
	lockers <- f.locker(nil)
	lockers <- f.locker(nil)
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
	if woken > polled/2 {
		t.Errorf("handed over after %v by messages, %v by polling", woken, polled)
	}
}
