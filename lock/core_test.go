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

// fake is a service whose replies are set by a test. By default it grants every request.
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
		l := locktest.Closed(t)(lock.New(f, &lock.Options{TTL: ttl}))
		test(t, f, l)
	})
}

func acquired(t *testing.T, l *lock.Locker, o *lock.AcquireOptions) *lock.Lease {
	t.Helper()
	return acquiredWithin(t, time.Hour, l, o)
}

func acquiredWithin(t *testing.T, limit time.Duration, l *lock.Locker, o *lock.AcquireOptions) *lock.Lease {
	t.Helper()
	if o == nil {
		o = &lock.AcquireOptions{}
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
		t.Fatal("the context does not end")
	}
	if took := time.Since(began); took != after {
		t.Errorf("the context ends after %v, want %v", took, after)
	}
	return context.Cause(lease.Context())
}

const safe = ttl - ttl/20 - 5*time.Millisecond // the part of the TTL that a holder may use

// TestLockLifeBeginsWithRequest: the life of a lock begins when it is requested, even if the
// reply is slow.
func TestLockLifeBeginsWithRequest(t *testing.T) {
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
			t.Errorf("%v left until the deadline", left)
		}
		if err := endsAt(t, lease, began, safe); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		if err := lease.Release(); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
	})
}

// TestLateGrantIsReleased: a lock whose life has already passed when the grant arrives is released.
func TestLateGrantIsReleased(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			g := driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}
			time.Sleep(safe)
			return g, nil
		}
		if _, err := l.Acquire(t.Context(), "a", nil); err == nil {
			t.Error("Acquire returns an expired lock")
		}
		if f.last() != "release" {
			t.Error(f.seen())
		}
	})
}

// TestExtensionIsBoundedByTheOldDeadline: while an extension hangs, the lock runs out at its old
// deadline and the holder's context ends.
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
			t.Errorf("an extension takes %v with %v left", bound, want)
		}
	})
}

// TestExtensionBeginsWithRequest: the new life begins with the request to extend, so an
// extension of two seconds uses up two seconds of it.
func TestExtensionBeginsWithRequest(t *testing.T) {
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

// TestAbandonedLockExpires: a lock whose holder has gone is not extended forever.
func TestAbandonedLockExpires(t *testing.T) {
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

// TestFailedExtensionIsRetried: a failed extension is retried while the lock lives.
func TestFailedExtensionIsRetried(t *testing.T) {
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

// TestLossEndsContextImmediately: the holder's context ends as soon as the service or the driver
// reports the loss, before the deadline.
func TestLossEndsContextImmediately(t *testing.T) {
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

// TestLostBeforeGranted: a driver may notice the loss of a lock before Acquire returns it.
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

// TestReleaseCancelsExtension: a release ends a running extension, and none begins afterwards.
func TestReleaseCancelsExtension(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.extend = func(ctx context.Context, _ time.Duration) error {
			<-ctx.Done()
			time.Sleep(time.Second) // slow to notice its cancellation
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

// TestReleaseWithoutReplyIsRetried: a release without a reply returns an error and is retried in
// the background.
func TestReleaseWithoutReplyIsRetried(t *testing.T) {
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
			t.Errorf("%d releases succeeded, want 1", n)
		}
	})
}

// TestFailedReleaseReturnsSoon: a release that fails immediately returns soon, even with a long
// timeout, and is retried in the background.
func TestFailedReleaseReturnsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := locktest.Closed(t)(lock.New(f, &lock.Options{TTL: time.Hour, Timeout: time.Minute}))
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
			t.Error("the release is not retried")
		}
	})
}

// TestReleaseCountsOnce: repeated calls of Release on one lease count once. Other leases of the
// owner keep the lock.
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

// TestWaitersGetLockInOrder: of the callers that wait in a process, one asks the service. They get
// the lock in the order of their calls.
func TestWaitersGetLockInOrder(t *testing.T) {
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
			t.Errorf("%d callers ask the service at the same time, want 1", len(f.seen()))
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

// TestCancelledWaiterPassesTurn: a cancelled caller passes its turn on.
func TestCancelledWaiterPassesTurn(t *testing.T) {
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

// TestServicePanics: a panic of a driver does not block other callers.
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

// TestLostLockIsReleasedLater: a lost lock is released later, because a service may keep a
// lock that is no longer extended, for example while its session lives.
func TestLostLockIsReleasedLater(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		began := time.Now()
		lease := acquired(t, l, &lock.AcquireOptions{Fixed: true})
		endsAt(t, lease, began, safe)
		synctest.Wait()
		if len(f.seen()) != 1 {
			t.Error("a lost lock is released immediately, without time for its holder to stop")
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

// TestMaxHoldLimitsLongLocks: AcquireOptions.MaxHold limits the hold even where locks live longer
// than requested.
func TestMaxHoldLimitsLongLocks(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: 3 * ttl}, nil
		}
		began := time.Now()
		lease := acquired(t, l, &lock.AcquireOptions{MaxHold: ttl})
		if err := endsAt(t, lease, began, ttl); !errors.Is(err, lock.ErrLost) ||
			!strings.Contains(err.Error(), "MaxHold") {
			t.Error(err)
		}
	})
}

// TestLostBeforeMaxHold: if the lock could not be extended, the error does not name MaxHold.
func TestLostBeforeMaxHold(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.extend = func(context.Context, time.Duration) error { return errors.New("no answer") }
		began := time.Now()
		lease := acquired(t, l, &lock.AcquireOptions{MaxHold: ttl + time.Second})
		if err := endsAt(t, lease, began, safe); !errors.Is(err, lock.ErrLost) ||
			strings.Contains(err.Error(), "MaxHold") {
			t.Error(err)
		}
	})
}

// TestReleaseReturnsInTime: Release returns in time even if an earlier request hangs.
func TestReleaseReturnsInTime(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		const timeout = time.Second / 2
		f.extend = func(context.Context, time.Duration) error {
			time.Sleep(timeout) // like a client that ignores cancellation and keeps deadlines
			return errors.New("no answer")
		}
		var n atomic.Int32
		f.release = func(ctx context.Context) error {
			if n.Add(1) == 1 { // the reply is lost
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
			t.Error("Release succeeds although the service hangs")
		}
		if took := time.Since(began); took > 2*timeout {
			t.Errorf("Release takes %v", took)
		}
	})
}

// TestCloseReportsLostLocks: Close names the lost locks by the hashes of their names.
func TestCloseReportsLostLocks(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.release = func(context.Context) error { return driver.ErrLost }
		acquired(t, l, nil)
		err := l.Close()
		if of, ok := errors.AsType[*lock.Error](err); !ok || of.Op != "release" || of.Name != "lock:a" ||
			!errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
	})
}
