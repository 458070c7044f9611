// Package locktest is the test suite of all lock services: it tests what lock.Locker and lock.Lease
// promise.
package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// A Backend is a lock service with its driver.
type Backend struct {
	// New returns a Locker with its own connections, as in another process. It closes the Locker
	// when the test ends.
	New func(t testing.TB, o *lock.LockerOptions) *lock.Locker

	// TTL is the lifetime of locks whose end a test waits for. If the machine is too slow for it,
	// the test runs again with twice the lifetime. Default: 400 ms.
	TTL time.Duration
}

var tests = []struct {
	name string
	run  func(*suite)
}{
	{"Exclusive", exclusive},
	{"Try", try},
	{"Wait", wait},
	{"CancelledWaiter", cancelledWaiter},
	{"Released", released},
	{"Watchdog", brief(watchdog)},
	{"Fixed", brief(fixed)},
	{"Extend", brief(extend)},
	{"MaxHold", brief(maxHold)},
	{"ContextEnds", brief(contextEnds)},
	{"Reentrant", brief(reentrant)},
	{"OwnersJoin", ownersJoin},
	{"Do", do},
	{"Names", names},
	{"Close", closing},
	{"BadInput", badInput},
}

// Run runs the suite. Each test uses its own lock name.
func Run(t *testing.T, b Backend) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test.run(&suite{TB: t, b: b, name: test.name, life: cmp.Or(b.TTL, 400*time.Millisecond)})
		})
	}
}

// RunInBubble runs the suite, each test in a testing/synctest bubble with its own service. In a
// bubble nothing is late, and timers fire in an exact order.
func RunInBubble(t *testing.T, open func(t testing.TB) Backend) {
	runInBubble(t, open)
}

// LivesInBubble runs the tests of RunInBubble that check when locks end.
func LivesInBubble(t *testing.T, open func(t testing.TB) Backend) {
	runInBubble(t, open, "Wait", "Watchdog", "Fixed", "Extend", "MaxHold", "ContextEnds", "Reentrant")
}

func runInBubble(t *testing.T, open func(t testing.TB) Backend, only ...string) {
	for _, test := range tests {
		if only != nil && !slices.Contains(only, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.run(&suite{TB: t, b: open(t), name: test.name, life: 1200 * time.Millisecond, exact: true})
			})
		})
	}
}

type suite struct {
	testing.TB
	b     Backend
	name  string
	life  time.Duration // lifetime of locks whose end the test waits for
	exact bool          // the test runs in a bubble
	slow  string        // why life was too short for this machine
}

// lasting is a lifetime longer than any test on a busy machine. Requests time out after a quarter
// of it.
const lasting = time.Minute

// longest is a lifetime after which brief does not try a longer one.
const longest = 30 * time.Second

// tooSlow is the panic value that ends one attempt of a test.
type tooSlow struct{}

// brief returns a test that repeats test, each time with twice the lifetime, until this machine is
// fast enough for it.
func brief(test func(*suite)) func(*suite) {
	return func(s *suite) {
		s.Helper()
		for {
			if s.try(test) {
				return
			}
			if s.exact || s.life > longest {
				s.Fatal("a lock ended too early: ", s.slow)
			}
			s.Logf("trying again: with a lifetime of %v, %s", s.life, s.slow)
			s.life *= 2
		}
	}
}

// try runs test once. It returns false if this machine was too slow.
func (s *suite) try(test func(*suite)) (inTime bool) {
	defer func() {
		switch p := recover(); p {
		case nil, tooSlow{}:
		default:
			panic(p)
		}
	}()
	test(s)
	return true
}

// late ends an attempt of a test whose locks ended too early, as they do on a machine that is too
// slow for their lifetime.
func (s *suite) late(why string, args ...any) {
	s.slow = fmt.Sprintf(why, args...)
	panic(tooSlow{})
}

// locker returns the Locker of another process. Its locks outlast the test.
func (s *suite) locker() *lock.Locker {
	s.Helper()
	return s.b.New(s.TB, &lock.LockerOptions{TTL: lasting, Timeout: lasting / 4})
}

// brief returns a Locker whose locks have a short lifetime.
func (s *suite) brief() *lock.Locker {
	s.Helper()
	return s.b.New(s.TB, &lock.LockerOptions{TTL: s.life, Timeout: s.life / 4})
}

// within returns a context for operations that should take no time. It ends after testenv.Hang.
func (s *suite) within() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Hang)
	s.Cleanup(cancel)
	return ctx
}

// acquire acquires the test's lock, or ends the test.
func (s *suite) acquire(l *lock.Locker, o *lock.Options) *lock.Lease {
	s.Helper()
	return s.acquireWith(s.within(), l, o)
}

func (s *suite) acquireWith(ctx context.Context, l *lock.Locker, o *lock.Options) *lock.Lease {
	s.Helper()
	lease, err := l.Acquire(ctx, s.name, o)
	if err != nil {
		s.Fatalf("acquire: %v", err)
	}
	return lease
}

// briefly acquires the test's lock by a Locker whose locks have a short lifetime. If that fails, it
// ends the attempt.
func (s *suite) briefly(ctx context.Context, l *lock.Locker, o *lock.Options) *lock.Lease {
	s.Helper()
	lease, err := l.Acquire(ctx, s.name, o)
	if err != nil {
		s.late("acquire: %v", err)
	}
	return lease
}

// kept ends the attempt if a lease that should be alive has ended. This happens if it could not be
// extended in time.
func (s *suite) kept(leases ...*lock.Lease) {
	s.Helper()
	for _, lease := range leases {
		if err := context.Cause(lease.Context()); err != nil {
			s.late("a lock was not extended in time: %v", err)
		}
		if late := time.Since(lease.Deadline()); late > 0 {
			s.late("a lock was extended %v late, or its context ends that late", late)
		}
	}
}

// released ends the attempt if a lock with a short lifetime could not be released in time.
func (s *suite) released(err error) {
	s.Helper()
	if err != nil {
		s.late("release: %v", err)
	}
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

// held asserts that l cannot acquire the lock.
func (s *suite) held(l *lock.Locker) {
	s.Helper()
	lease, err := l.TryAcquire(s.within(), s.name, nil)
	if err == nil {
		lease.Release()
	}
	s.is(err, lock.ErrHeld)
}

// heldBriefly is like held, for a Locker whose requests may time out on a busy machine.
func (s *suite) heldBriefly(l *lock.Locker) {
	s.Helper()
	lease, err := l.TryAcquire(s.within(), s.name, nil)
	switch {
	case err == nil:
		lease.Release()
		s.Errorf("a lock that another holds was acquired")
	case !errors.Is(err, lock.ErrHeld):
		s.late("try to acquire: %v", err)
	}
}

// ends waits until lease has ended, and asserts the cause.
func (s *suite) ends(lease *lock.Lease, cause error) {
	s.Helper()
	testenv.Receive(s, "the end of a lease", lease.Context().Done())
	s.is(context.Cause(lease.Context()), cause)
}

func (s *suite) lives(lease *lock.Lease) {
	s.Helper()
	if err := context.Cause(lease.Context()); err != nil {
		s.Errorf("the lease has ended: %v", err)
	}
}
