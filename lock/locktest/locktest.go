// Package locktest tests implementations of driver.Driver. It is for tests of your own driver, and
// all drivers of this module run it:
//
//	func TestDriver(t *testing.T) {
//		locktest.Run(t, locktest.Backend{New: connect})
//	}
//
// The suite starts no server. It checks what lock.Locker and lock.Lease promise with the driver:
// one holder at a time, growing tokens, waiting, cancelled requests, locks that expire, extensions,
// and names with any bytes. It does not test what happens while the service is down, or when its
// server crashes.
package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// A Backend describes the driver under test.
type Backend struct {
	// New returns a driver with connections of its own to the same service, as in another process.
	// The suite closes the driver when the test ends. New ends the test if it fails, and registers
	// a t.Cleanup that closes the connections if the driver does not. Tests run in parallel, so New
	// may be called concurrently. It is required.
	//
	// o are the options of the Locker that uses the driver: TTL and Timeout are set. A driver needs
	// them only if it cannot use those of each request, such as for the timeout of a session.
	New func(t testing.TB, o *lock.Options) driver.Driver

	// TTL is the lifetime of locks whose end a test waits for. If the machine is too slow for it,
	// the test runs again with twice the lifetime. Default: 400 ms.
	TTL time.Duration

	// Session means that a lock does not expire while the connections of its driver are alive.
	Session bool

	// Idle means that nothing else runs on the machine. The suite then also asserts that the
	// context of a holder has ended before the next holder has the lock, and takes longer.
	// Without Idle, timers may be late, and the suite only logs the times.
	Idle bool
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
	{"Expires", brief(expires)},
	{"Extend", brief(extend)},
	{"MaxHold", brief(maxHold)},
	{"ContextEnds", brief(contextEnds)},
	{"Reentrant", brief(reentrant)},
	{"OwnersJoin", ownersJoin},
	{"Do", do},
	{"Names", names},
	{"ReadWrite", readersAndWriters},
	{"WriterLeaves", writerLeaves},
	{"SharedExpires", brief(sharedExpires)},
	{"SharedExtended", brief(sharedExtended)},
	{"Semaphore", permits},
	{"Inspect", brief(inspected)},
	{"AcquireAll", allOrNone},
	{"AcquireAllOrder", noDeadlock},
	{"AcquireAllLost", brief(allLost)},
	{"Once", brief(once)},
	{"OnceAgain", brief(onceAgain)},
	{"Close", closing},
	{"BadInput", badInput},
}

// Run runs the suite, as parallel subtests of t. Lock names begin with the name of t, so several
// calls can use one service at the same time. The exception is the subtest Names, which uses fixed
// names: two runs of it wait for each other's locks. A call of the driver that takes longer than a
// minute fails.
func Run(t *testing.T, b Backend) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test.run(&suite{TB: t, b: b, name: t.Name(), life: cmp.Or(b.TTL, 400*time.Millisecond)})
		})
	}
}

// RunInBubble runs the suite, each test in a testing/synctest bubble. It is for services in the
// memory of the process. open is called in each bubble, and creates a service of its own. In a
// bubble a test does not wait, nothing is late, and timers fire in an exact order, so the suite is
// as strict as with Backend.Idle. Also, an Acquire must return as soon as its context ends.
func RunInBubble(t *testing.T, open func(t testing.TB) Backend) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.run(&suite{TB: t, b: open(t), name: t.Name(), life: 1200 * time.Millisecond, exact: true})
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

// hang is how long the suite waits for what should not take time. Even a busy machine takes less.
const hang = time.Minute

// lasting is a lifetime longer than any test on a busy machine: a lock that is left behind is still
// held when hang ends. Requests time out after a quarter of it.
const lasting = 2 * hang

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
			s.name += "'" // the failed attempt may have left locks
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
func (s *suite) late(format string, args ...any) {
	s.slow = fmt.Sprintf(format, args...)
	panic(tooSlow{})
}

// locker returns the Locker of another process. Its locks outlast the test.
func (s *suite) locker() *lock.Locker {
	s.Helper()
	return s.lockerWith(lasting)
}

// brief returns a Locker whose locks have a short lifetime.
func (s *suite) brief() *lock.Locker {
	s.Helper()
	return s.lockerWith(s.life)
}

func (s *suite) lockerWith(ttl time.Duration) *lock.Locker {
	s.Helper()
	o := &lock.Options{TTL: ttl, Timeout: ttl / 4}
	l, err := lock.New(s.b.New(s.TB, o), o)
	s.check(err)
	s.Cleanup(func() { _ = l.Close() })
	return l
}

// strict reports whether the suite asserts when contexts end.
func (s *suite) strict() bool { return s.exact || s.b.Idle }

// within returns a context for operations that should take no time. It ends after hang.
func (s *suite) within() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), hang)
	s.Cleanup(cancel)
	return ctx
}

// acquire acquires the test's lock, or ends the test.
func (s *suite) acquire(l *lock.Locker, o *lock.AcquireOptions) *lock.Lease {
	s.Helper()
	return s.acquireWith(s.within(), l, o)
}

func (s *suite) acquireWith(ctx context.Context, l *lock.Locker, o *lock.AcquireOptions) *lock.Lease {
	s.Helper()
	lease, err := l.Acquire(ctx, s.name, o)
	if err != nil {
		s.Fatalf("acquire: %v", err)
	}
	return lease
}

// briefly acquires the test's lock by a Locker whose locks have a short lifetime. If that fails, it
// ends the attempt.
func (s *suite) briefly(ctx context.Context, l *lock.Locker, o *lock.AcquireOptions) *lock.Lease {
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

// receive waits for a value from c, or for c to be closed.
func receive[T any](s *suite, event string, c <-chan T) T {
	s.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(hang):
		s.Fatal("hung, waited for: " + event)
		panic("unreachable")
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
	receive(s, "the end of a lease", lease.Context().Done())
	s.is(context.Cause(lease.Context()), cause)
}

func (s *suite) lives(lease *lock.Lease) {
	s.Helper()
	if err := context.Cause(lease.Context()); err != nil {
		s.Errorf("the lease has ended: %v", err)
	}
}
