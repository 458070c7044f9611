// Package locktest is the suite of behaviour that every lock service is to show: what lock.Locker
// and lock.Lease promise.
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

// Backend is a service with its driver.
type Backend struct {
	// New makes a Locker, as another process would: with connections of its own. It is closed with
	// the test.
	New func(t testing.TB, o *lock.LockerOptions) *lock.Locker

	// TTL is the life of locks whose end a test waits for. On a machine that is too slow for it the
	// test is run again with twice as long a life. Default: 400 ms.
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

// Run runs the suite, each test with a lock name of its own.
func Run(t *testing.T, b Backend) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test.run(&suite{TB: t, b: b, name: test.name, life: cmp.Or(b.TTL, 400*time.Millisecond)})
		})
	}
}

// RunInBubble runs the suite, each test in a testing/synctest bubble, with a service of its own.
// There nothing is ever late, and the order of what timers do is exact.
func RunInBubble(t *testing.T, open func(t testing.TB) Backend) {
	runInBubble(t, open)
}

// LivesInBubble is the part of RunInBubble that is about when locks end.
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
	life  time.Duration // of locks whose end is waited for
	exact bool          // in a bubble
	slow  string        // why life was too short for this machine
}

// lasting is a life that no busy machine outlasts, with requests that have a quarter of it.
const lasting = time.Minute

// longest is the longest life that is tried on a busy machine.
const longest = 30 * time.Second

// tooSlow ends one try of a test.
type tooSlow struct{}

// brief runs a test of locks with short lives, again and again with longer ones, until this machine
// is quick enough for them.
func brief(test func(*suite)) func(*suite) {
	return func(s *suite) {
		s.Helper()
		for {
			if s.try(test) {
				return
			}
			if s.exact || s.life > longest {
				s.Fatal("not kept: ", s.slow)
			}
			s.Logf("once more: with a life of %v, %s", s.life, s.slow)
			s.life *= 2
		}
	}
}

// try answers false if this machine was too slow.
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

// late ends a try of a test whose locks were not kept, as on a machine that is too slow for their
// lives.
func (s *suite) late(why string, args ...any) {
	s.slow = fmt.Sprintf(why, args...)
	panic(tooSlow{})
}

// locker is that of one more process. Its locks last.
func (s *suite) locker() *lock.Locker {
	s.Helper()
	return s.b.New(s.TB, &lock.LockerOptions{TTL: lasting, Timeout: lasting / 4})
}

// brief is a locker whose locks have short lives.
func (s *suite) brief() *lock.Locker {
	s.Helper()
	return s.b.New(s.TB, &lock.LockerOptions{TTL: s.life, Timeout: s.life / 4})
}

// within is for what should come at once.
func (s *suite) within() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Hang)
	s.Cleanup(cancel)
	return ctx
}

// acquire gets the lock of the test, or ends it.
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

// briefly gets the lock of the test by a locker whose locks have short lives. It is released at the
// end of a try, so that the next can have it.
func (s *suite) briefly(ctx context.Context, l *lock.Locker, o *lock.Options) *lock.Lease {
	s.Helper()
	lease, err := l.Acquire(ctx, s.name, o)
	if err != nil {
		s.late("acquire: %v", err)
	}
	return lease
}

// kept ends the try if a lease that should live has ended, as it may when it could not be extended
// in time.
func (s *suite) kept(leases ...*lock.Lease) {
	s.Helper()
	for _, lease := range leases {
		if err := context.Cause(lease.Context()); err != nil {
			s.late("a lock was not extended in time: %v", err)
		}
		if late := time.Since(lease.Deadline()); late > 0 {
			s.late("a lock was extended %v late, or its holder is told as late", late)
		}
	}
}

// released ends the try if a lock with a short life could not be released in time.
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

// held asserts that others cannot get the lock.
func (s *suite) held(l *lock.Locker) {
	s.Helper()
	lease, err := l.TryAcquire(s.within(), s.name, nil)
	if err == nil {
		lease.Release()
	}
	s.is(err, lock.ErrHeld)
}

// heldBriefly is held for a locker whose requests a busy machine may not answer in time.
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

// ends waits for the end of a lease, and asserts why.
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
