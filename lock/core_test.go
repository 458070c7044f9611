package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// fake is a service whose answers a test makes. It grants every request, unless told otherwise.
type fake struct {
	mu       sync.Mutex
	acquire  func(ctx context.Context, r driver.Request) (driver.Grant, error)
	extend   func(ctx context.Context, ttl time.Duration) error
	release  func(ctx context.Context) error
	requests []driver.Request
	log      []string
	tokens   int64
}

func (f *fake) note(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, what)
}

func (f *fake) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	f.mu.Lock()
	f.tokens++
	g := driver.Grant{Lock: f, Token: f.tokens, Sent: time.Now(), TTL: r.TTL}
	f.requests = append(f.requests, r)
	f.mu.Unlock()
	f.note("acquire")
	if f.acquire != nil {
		return f.acquire(ctx, r)
	}
	return g, nil
}

func (f *fake) Extend(ctx context.Context, ttl time.Duration) error {
	f.note("extend")
	if f.extend != nil {
		return f.extend(ctx, ttl)
	}
	return nil
}

func (f *fake) Release(ctx context.Context) error {
	f.note("release")
	if f.release != nil {
		return f.release(ctx)
	}
	return nil
}

func (f *fake) Close() error { f.note("close"); return nil }

func (f *fake) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

func (f *fake) last() string { s := f.seen(); return s[len(s)-1] }

func (f *fake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

const ttl = 10 * time.Second

// with runs a test in a bubble, with a Locker on a fake service.
func with(t *testing.T, test func(t *testing.T, f *fake, l *lock.Locker)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := locktest.Closed(t)(lock.New(f, &lock.LockerOptions{TTL: ttl}))
		test(t, f, l)
	})
}

func acquired(t *testing.T, l *lock.Locker, o *lock.Options) *lock.Lease {
	t.Helper()
	return acquiredWithin(t, time.Hour, l, o)
}

func acquiredWithin(t *testing.T, limit time.Duration, l *lock.Locker, o *lock.Options) *lock.Lease {
	t.Helper()
	if o == nil {
		o = &lock.Options{}
	}
	own := *o
	own.Wait = limit
	lease, err := l.Acquire(t.Context(), "a", &own)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// endsAt asserts when the context of a lease ends, and returns the cause.
func endsAt(t *testing.T, lease *lock.Lease, began time.Time, after time.Duration) error {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(10 * ttl):
		t.Fatal("it does not end")
	}
	if took := time.Since(began); took != after {
		t.Errorf("ended after %v, want %v", took, after)
	}
	return context.Cause(lease.Context())
}

const safe = ttl - ttl/20 - 5*time.Millisecond // what is left of a life for its holder

// TestDeadlineIsFromBeforeTheRequest: the life of a lock that took long to get began when it was
// asked for.
func TestDeadlineIsFromBeforeTheRequest(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		began := time.Now()
		f.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			g := driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}
			time.Sleep(3 * time.Second)
			return g, nil
		}
		f.extend = func(context.Context, time.Duration) error { return errors.New("no") }
		lease := acquired(t, l, nil)
		if left := time.Until(lease.Deadline()); left != safe-3*time.Second {
			t.Errorf("%v left", left)
		}
		if err := endsAt(t, lease, began, safe); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		if err := lease.Release(); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
	})
}

// TestGrantTooLate: a lock that is no longer worth anything when it comes is given back.
func TestGrantTooLate(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			g := driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}
			time.Sleep(safe)
			return g, nil
		}
		if _, err := l.Acquire(t.Context(), "a", nil); err == nil {
			t.Error("it was handed out")
		}
		if f.last() != "release" {
			t.Error(f.seen())
		}
	})
}

// TestExtensionIsBoundedByTheOldDeadline: while an extension hangs the lock of before runs out, and
// the holder is told then.
func TestExtensionIsBoundedByTheOldDeadline(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		var bound time.Duration
		f.extend = func(ctx context.Context, _ time.Duration) error {
			began := time.Now()
			<-ctx.Done()
			bound = time.Since(began)
			return ctx.Err()
		}
		began := time.Now()
		lease := acquired(t, l, nil)
		endsAt(t, lease, began, safe)
		synctest.Wait()
		if want := began.Add(safe).Sub(began.Add(ttl / 3)); bound > want {
			t.Errorf("an extension took %v, with %v left", bound, want)
		}
	})
}

// TestExtensionCountsFromItsRequest: what takes two seconds to be extended has lived for two
// seconds.
func TestExtensionCountsFromItsRequest(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		n := 0
		f.extend = func(ctx context.Context, _ time.Duration) error {
			if n++; n > 1 {
				return errors.New("no")
			}
			time.Sleep(2 * time.Second)
			return nil
		}
		began := time.Now()
		endsAt(t, acquired(t, l, nil), began, ttl/3+safe)
	})
}

// TestForgottenLockEnds: one whose holder has gone is not extended for ever.
func TestForgottenLockEnds(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := l.Acquire(ctx, "a", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl)
		cancel()
		time.Sleep(2 * ttl)
		if f.last() != "release" {
			t.Error(f.seen())
		}
	})
}

// TestUnknownExtensionIsRepeated: one that fails is tried again while the lock lives.
func TestUnknownExtensionIsRepeated(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		n := 0
		f.extend = func(context.Context, time.Duration) error {
			if n++; n%4 != 0 {
				return errors.New("no answer")
			}
			return nil
		}
		lease := acquired(t, l, nil)
		time.Sleep(10 * ttl)
		if err := context.Cause(lease.Context()); err != nil {
			t.Error(err)
		}
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
	})
}

// TestGoneIsToldAtOnce: when the service says that the lock is gone, or its driver learns it,
// nobody waits for the deadline.
func TestGoneIsToldAtOnce(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.extend = func(context.Context, time.Duration) error { return driver.ErrLost }
		began := time.Now()
		if err := endsAt(t, acquired(t, l, nil), began, ttl/3); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		began = time.Now()
		lease := acquired(t, l, nil)
		why := errors.New("the session has ended")
		f.requests[1].Lost(why)
		if err := endsAt(t, lease, began, 0); !errors.Is(err, lock.ErrLost) || !errors.Is(err, why) {
			t.Error(err)
		}
	})
}

// TestLostBeforeGranted: a driver may learn that a lock is gone before Acquire has it.
func TestLostBeforeGranted(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			r.Lost(errors.New("the session has ended"))
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}, nil
		}
		if _, err := l.Acquire(t.Context(), "a", nil); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		if len(f.seen()) != 2 || f.seen()[1] != "release" {
			t.Error(f.seen())
		}
	})
}

// TestReleaseEndsTheExtension: no extension begins, or goes on, once a lock is being released.
func TestReleaseEndsTheExtension(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.extend = func(ctx context.Context, _ time.Duration) error {
			<-ctx.Done()
			time.Sleep(time.Second) // it takes its time to notice
			f.note("extended")
			return ctx.Err()
		}
		lease := acquired(t, l, nil)
		time.Sleep(ttl/3 + time.Millisecond)
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * ttl)
		if got := f.seen(); len(got) != 4 || got[2] != "extended" || got[3] != "release" {
			t.Error(got)
		}
	})
}

// TestReleaseIsTriedOn: a release that is not known to have arrived says so, and goes on.
func TestReleaseIsTriedOn(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		var n atomic.Int32
		lease, began := acquired(t, l, nil), time.Now()
		f.release = func(context.Context) error {
			if time.Since(began) < time.Second {
				return errors.New("no answer")
			}
			n.Add(1)
			return nil
		}
		err := lease.Release()
		if err == nil || errors.Is(err, lock.ErrLost) || lease.Release() == nil {
			t.Error(err)
		}
		time.Sleep(2 * ttl)
		if n := n.Load(); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// TestReleaseOfAServiceThatRefuses: a release that fails at once returns soon, even with a long
// timeout, and is retried in the background.
func TestReleaseOfAServiceThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := locktest.Closed(t)(lock.New(f, &lock.LockerOptions{TTL: time.Hour, Timeout: time.Minute}))
		lease, began := acquired(t, l, nil), time.Now()
		f.release = func(context.Context) error { return errors.New("refused") }
		if err := lease.Release(); err == nil || errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		if took, tries := time.Since(began), len(f.seen())-1; took > 100*time.Millisecond || tries != 6 {
			t.Errorf("%d tries in %v", tries, took)
		}
		before := len(f.seen())
		time.Sleep(time.Hour)
		if len(f.seen()) == before {
			t.Error("it is not retried")
		}
	})
}

// TestReleaseCountsOnce: of one lease, whoever calls, while an owner's others keep the lock.
func TestReleaseCountsOnce(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		ctx := lock.WithOwner(t.Context())
		var leases []*lock.Lease
		for range 3 {
			lease, err := l.Acquire(ctx, "a", nil)
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		}
		for range 5 {
			leases[1].Release()
		}
		if len(f.seen()) != 1 {
			t.Error(f.seen())
		}
		leases[0].Release()
		leases[2].Release()
		if len(f.seen()) != 2 || f.seen()[1] != "release" {
			t.Error(f.seen())
		}
	})
}

// TestTurns: of many that wait in a process one asks the service, and they get the lock in the
// order in which they came.
func TestTurns(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			time.Sleep(time.Second)
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}, nil
		}
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				lease := acquired(t, l, nil)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				lease.Release()
			})
			synctest.Wait()
		}
		time.Sleep(time.Second / 2)
		if len(f.seen()) != 1 {
			t.Errorf("%d ask at the same time", len(f.seen()))
		}
		all.Wait()
		for i, got := range order {
			if got != i {
				t.Errorf("order %v", order)
				break
			}
		}
	})
}

// TestCancelledTurn: a caller that leaves with its turn passes it on.
func TestCancelledTurn(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if f.asked() == 1 {
				<-ctx.Done()
				return driver.Grant{}, ctx.Err()
			}
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go l.Acquire(ctx, "a", nil)
		synctest.Wait()
		lease := acquired(t, l, nil)
		lease.Release()
	})
}

// TestServicePanics: a driver that panics keeps nobody else from trying.
func TestServicePanics(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if f.asked() == 1 {
				panic("as told")
			}
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}, nil
		}
		func() {
			defer func() { recover() }()
			l.Acquire(t.Context(), "a", nil)
		}()
		acquired(t, l, nil).Release()
	})
}

// TestWhatIsLostIsReleasedInTheEnd: where a service would keep a lock that is no longer extended,
// as one whose session lives on does.
func TestWhatIsLostIsReleasedInTheEnd(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		began := time.Now()
		lease := acquired(t, l, &lock.Options{Fixed: true})
		endsAt(t, lease, began, safe)
		synctest.Wait()
		if len(f.seen()) != 1 {
			t.Error("released at once, when its holder has just been told")
		}
		time.Sleep(ttl - safe)
		synctest.Wait()
		if len(f.seen()) != 2 || f.seen()[1] != "release" {
			t.Error(f.seen())
		}
		if err := lease.Release(); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
	})
}

// TestMaxHoldOfALongLife: where locks live for longer than was asked for, Options.MaxHold is how
// long they are held all the same.
func TestMaxHoldOfALongLife(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: 3 * ttl}, nil
		}
		began := time.Now()
		lease := acquired(t, l, &lock.Options{MaxHold: ttl})
		if err := endsAt(t, lease, began, ttl); !errors.Is(err, lock.ErrLost) || !strings.Contains(err.Error(), "MaxHold") {
			t.Error(err)
		}
	})
}

// TestLostBeforeMaxHold: a holder that could not extend its lock is not told that it has held it
// for long enough.
func TestLostBeforeMaxHold(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.extend = func(context.Context, time.Duration) error { return errors.New("no answer") }
		began := time.Now()
		lease := acquired(t, l, &lock.Options{MaxHold: ttl + time.Second})
		if err := endsAt(t, lease, began, safe); !errors.Is(err, lock.ErrLost) || strings.Contains(err.Error(), "MaxHold") {
			t.Error(err)
		}
	})
}

// TestReleaseReturnsInTime: also when a request before it hangs.
func TestReleaseReturnsInTime(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		const timeout = time.Second / 2
		f.extend = func(context.Context, time.Duration) error {
			time.Sleep(timeout) // as a client does that keeps deadlines, but no cancellation
			return errors.New("no answer")
		}
		var n atomic.Int32
		f.release = func(ctx context.Context) error {
			if n.Add(1) == 1 { // an answer is lost
				time.Sleep(timeout / 3)
				return errors.New("no answer")
			}
			<-ctx.Done()
			return ctx.Err()
		}
		lease := acquired(t, l, nil)
		time.Sleep(ttl/3 + time.Millisecond)
		began := time.Now()
		if err := lease.Release(); err == nil {
			t.Error("released by a service that hangs")
		}
		if took := time.Since(began); took > 2*timeout {
			t.Errorf("took %v", took)
		}
	})
}

// TestCloseTellsWhatWasLost: by the hashes of the names.
func TestCloseTellsWhatWasLost(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.release = func(context.Context) error { return driver.ErrLost }
		acquired(t, l, nil)
		err := l.Close()
		if of, ok := errors.AsType[*lock.Error](err); !ok || of.Op != "release" || of.Name != "lock:a" || !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
	})
}
