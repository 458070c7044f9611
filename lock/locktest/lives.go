package locktest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock"
)

// watchdog: a lock that is held for several lifetimes is extended, and is free at once when it is
// released.
func watchdog(s *suite) {
	a, b := s.brief(), s.locker()
	lease := s.briefly(s.within(), a, nil)
	first := lease.Deadline()
	type result struct {
		lease *lock.Lease
		err   error
		at    time.Time
	}
	got := make(chan result, 1)
	go func() {
		other, err := b.Acquire(s.within(), s.name, nil)
		got <- result{other, err, time.Now()}
	}()
	select {
	case other := <-got:
		s.check(other.err)
		if lease.Deadline().After(other.at) {
			s.Fatal("another Locker acquired the lock before its holder's deadline")
		}
		s.check(other.lease.Release())
		s.late("a lock was not extended in time: %v", context.Cause(lease.Context()))
	case <-time.After(5 * s.life / 2):
	}
	moved := lease.Deadline().After(first)
	err := lease.Release()
	other := receive(s, "the lock, once it is released", got)
	s.check(other.err)
	s.check(other.lease.Release())
	s.released(err)
	if !moved {
		s.Error("the deadline has not moved")
	}
}

// fixed: the holder's context ends before another Locker acquires a lock that is not extended, and
// the holder's late release does not release the other's lock.
func fixed(s *suite) {
	a, b := s.brief(), s.locker()
	lease := s.briefly(s.within(), a, &lock.AcquireOptions{Fixed: true})
	var ended time.Time
	var all sync.WaitGroup
	all.Go(func() {
		<-lease.Context().Done()
		ended = time.Now()
	})
	other := s.acquire(b, nil)
	got := time.Now()
	all.Wait()
	s.is(context.Cause(lease.Context()), lock.ErrLost)
	s.Logf("the context ended %v before the next acquisition, the deadline was %v before it",
		got.Sub(ended).Round(time.Millisecond), got.Sub(lease.Deadline()).Round(time.Millisecond))
	if !lease.Deadline().Before(got) {
		s.Errorf("the deadline was %v after the next acquisition", lease.Deadline().Sub(got))
	}
	if s.strict() && !ended.Before(got) { // otherwise the timer may be late
		s.Errorf("the context ended %v after the next acquisition", ended.Sub(got))
	}
	if other.Token() <= lease.Token() {
		s.Errorf("token %d after %d", other.Token(), lease.Token())
	}
	s.is(lease.Extend(s.within()), lock.ErrLost)
	s.is(lease.Release(), lock.ErrLost)
	s.lives(other)
	s.heldBriefly(a)
	s.check(other.Release())
}

// extend: Extend prolongs a fixed lock.
func extend(s *suite) {
	a, b := s.brief(), s.locker()
	lease := s.briefly(s.within(), a, &lock.AcquireOptions{Fixed: true})
	defer lease.Release()
	for range 5 {
		time.Sleep(s.life / 3)
		before := lease.Deadline()
		if err := lease.Extend(s.within()); err != nil {
			s.late("extend: %v", err)
		}
		if !lease.Deadline().After(before) {
			s.Error("the deadline has not moved")
		}
	}
	_, err := b.TryAcquire(s.within(), s.name, nil)
	s.kept(lease)
	s.is(err, lock.ErrHeld)
	s.released(lease.Release())
	s.check(s.acquire(b, nil).Release())
}

// maxHold: a lock is extended until MaxHold, and not longer.
func maxHold(s *suite) {
	a, b := s.brief(), s.locker()
	began := time.Now()
	lease := s.briefly(s.within(), a, &lock.AcquireOptions{MaxHold: 2 * s.life})
	s.ends(lease, lock.ErrLost)
	if cause := context.Cause(lease.Context()); !strings.Contains(cause.Error(), "MaxHold") {
		s.is(lease.Release(), lock.ErrLost)
		s.late("lost before MaxHold: %v", cause)
	}
	if took := time.Since(began); took < s.life {
		s.Errorf("held for %v", took)
	}
	s.check(s.acquire(b, nil).Release())
	s.is(lease.Release(), lock.ErrLost)
}

// contextEnds: a lock is not extended after its holder's context has ended without a release.
func contextEnds(s *suite) {
	a, b := s.brief(), s.locker()
	ctx, cancel := context.WithCancel(s.within())
	lease := s.briefly(ctx, a, nil)
	cancel()
	s.ends(lease, context.Canceled)
	early, err := b.TryAcquire(s.within(), s.name, nil) // the holder may still be working
	if err == nil {
		s.check(early.Release())
	}
	if late := time.Since(lease.Deadline()); late > 0 {
		s.late("tried to acquire %v after the deadline", late)
	}
	s.is(err, lock.ErrHeld)
	other := s.acquire(b, nil)
	s.is(lease.Release(), lock.ErrLost)
	s.lives(other)
	s.check(other.Release())
}

// reentrant: an owner can acquire its own lock again at once. The lock is free when the owner has
// released it as many times.
func reentrant(s *suite) {
	a, b := s.brief(), s.locker()
	ctx := lock.WithOwner(s.within())
	first := s.briefly(ctx, a, nil)
	second, err := a.TryAcquire(ctx, s.name, nil)
	s.kept(first)
	s.check(err)
	third := s.briefly(first.Context(), a, nil) // derived from the first lease's context
	defer func() {                              // the order and the number of calls do not matter
		for _, lease := range []*lock.Lease{first, second, third} {
			_ = lease.Release()
		}
	}()
	if second.Token() != first.Token() {
		s.Errorf("tokens %d and %d of one lock", first.Token(), second.Token())
	}
	held := func(l *lock.Locker, ctx context.Context) {
		s.Helper()
		_, err := l.TryAcquire(ctx, s.name, nil)
		s.kept(second)
		if err != nil && !errors.Is(err, lock.ErrHeld) {
			s.late("try to acquire: %v", err)
		}
		s.is(err, lock.ErrHeld)
	}
	held(a, lock.WithOwner(ctx))
	held(a, s.within())
	for range 3 { // only the first call counts
		err := first.Release()
		s.kept(second)
		s.check(err)
	}
	s.ends(first, lock.ErrReleased)
	s.ends(third, lock.ErrReleased) // its context is derived from the first's
	time.Sleep(3 * s.life / 2)      // the lock is still extended
	s.kept(second)
	held(b, s.within())
	err = third.Release()
	s.kept(second)
	s.check(err)
	held(b, s.within())
	s.released(second.Release())
	s.check(s.acquire(b, nil).Release())
}

// ownersJoin: goroutines of one owner that wait for a lock acquire it together. Others wait.
func ownersJoin(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(b, nil)
	ctx := lock.WithOwner(s.within())
	var together, all sync.WaitGroup
	together.Add(3)
	for range 3 {
		all.Go(func() {
			mine, err := a.Acquire(ctx, s.name, nil)
			together.Done()
			if err != nil {
				s.Error(err)
				return
			}
			together.Wait() // all three hold the lock
			s.held(b)
			if err := mine.Release(); err != nil {
				s.Error(err)
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	s.check(lease.Release())
	all.Wait()
	s.check(s.acquire(b, nil).Release())
}
