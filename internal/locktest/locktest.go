// Package locktest is the suite of behaviour that every lock service is to show: what lock.Locker and lock.Lease promise.
package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/lock"
)

// Backend is a service with its driver.
type Backend struct {
	// New makes a Locker, as another process would: with connections of its own. It is closed with the test.
	New func(t testing.TB, o *lock.LockerOptions) *lock.Locker

	// TTL is a short life of a lock, that tests wait for; a quarter of it is all that a request has, on a busy machine. Default: 1.2 s.
	TTL time.Duration

	// Slow is how much longer than its TTL the lock of a dead holder may stay.
	Slow time.Duration
}

// Run runs the suite, each test with a lock name of its own.
func Run(t *testing.T, b Backend) {
	if b.TTL == 0 {
		b.TTL = 1200 * time.Millisecond
	}
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"Exclusive", exclusive},
		{"Try", try},
		{"Wait", wait},
		{"CancelledWaiter", cancelledWaiter},
		{"Released", released},
		{"Watchdog", watchdog},
		{"Fixed", fixed},
		{"Extend", extend},
		{"MaxHold", maxHold},
		{"ContextEnds", contextEnds},
		{"Reentrant", reentrant},
		{"OwnersJoin", ownersJoin},
		{"Do", do},
		{"Names", names},
		{"Close", closing},
		{"BadInput", badInput},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test.run(&suite{TB: t, b: b, name: test.name})
		})
	}
}

type suite struct {
	testing.TB
	b    Backend
	name string
}

// locker is that of one more process.
func (s *suite) locker() *lock.Locker {
	s.Helper()
	return s.b.New(s.TB, &lock.LockerOptions{TTL: s.b.TTL})
}

// patience is how long is waited for what should come at once.
const patience = 20 * time.Second

func (s *suite) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), d)
	s.Cleanup(cancel)
	return ctx
}

// acquire gets the lock of the test, or ends it.
func (s *suite) acquire(l *lock.Locker, o *lock.Options) *lock.Lease {
	s.Helper()
	return s.acquireWith(s.within(patience), l, o)
}

func (s *suite) acquireWith(ctx context.Context, l *lock.Locker, o *lock.Options) *lock.Lease {
	s.Helper()
	lease, err := l.Acquire(ctx, s.name, o)
	if err != nil {
		s.Fatalf("acquire: %v", err)
	}
	return lease
}

func (s *suite) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) is(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("error %v, want %v", err, want)
	}
}

// held asserts that others cannot get the lock.
func (s *suite) held(l *lock.Locker) {
	s.Helper()
	lease, err := l.TryAcquire(s.within(patience), s.name, nil)
	if err == nil {
		lease.Release()
	}
	s.is(err, lock.ErrHeld)
}

// ends waits for the end of a lease, and asserts why.
func (s *suite) ends(lease *lock.Lease, limit time.Duration, cause error) {
	s.Helper()
	select {
	case <-lease.Context().Done():
		s.is(context.Cause(lease.Context()), cause)
	case <-time.After(limit):
		s.Fatalf("the lease has not ended after %v", limit)
	}
}

func (s *suite) lives(lease *lock.Lease) {
	s.Helper()
	if err := context.Cause(lease.Context()); err != nil {
		s.Errorf("the lease has ended: %v", err)
	}
}
