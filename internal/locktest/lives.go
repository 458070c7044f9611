package locktest

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/lock"
)

// watchdog: a lock that is held for long stays, and is free at once when it is released.
func watchdog(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(a, nil)
	first := lease.Deadline()
	got := make(chan *lock.Lease, 1)
	go func() {
		other, err := b.Acquire(s.within(patience), s.name, nil)
		if err != nil {
			s.Error(err)
		}
		got <- other
	}()
	select {
	case <-got:
		s.Fatal("another has got the lock of a living holder")
	case <-time.After(5 * s.b.TTL / 2):
	}
	s.lives(lease)
	if !lease.Deadline().After(first) {
		s.Error("the deadline has not moved")
	}
	s.check(lease.Release())
	if other := <-got; other != nil {
		s.check(other.Release())
	}
}

// fixed: a lock that is not extended ends for its holder before another gets it, and his late release does not end the other's.
func fixed(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(a, &lock.Options{Fixed: true})
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
	s.Logf("told %v before the next had it", got.Sub(ended).Round(time.Millisecond))
	if !ended.Before(got) {
		s.Errorf("told %v after the next had it", ended.Sub(got))
	}
	if other.Token() <= lease.Token() {
		s.Errorf("token %d after %d", other.Token(), lease.Token())
	}
	s.is(lease.Extend(s.within(patience)), lock.ErrLost)
	s.is(lease.Release(), lock.ErrLost)
	s.lives(other)
	s.held(a)
	s.check(other.Release())
}

func extend(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(a, &lock.Options{Fixed: true})
	for range 5 {
		time.Sleep(s.b.TTL / 3)
		before := lease.Deadline()
		if err := lease.Extend(s.within(patience)); err != nil {
			s.Fatal(err)
		}
		if !lease.Deadline().After(before) {
			s.Error("the deadline has not moved")
		}
	}
	s.lives(lease)
	s.held(b)
	s.check(lease.Release())
	s.check(s.acquire(b, nil).Release())
}

func maxHold(s *suite) {
	a, b := s.locker(), s.locker()
	began := time.Now()
	lease := s.acquire(a, &lock.Options{MaxHold: 2 * s.b.TTL})
	s.ends(lease, patience, lock.ErrLost)
	if took := time.Since(began); took < s.b.TTL {
		s.Errorf("held for %v", took)
	}
	s.check(s.acquire(b, nil).Release())
	s.is(lease.Release(), lock.ErrLost)
}

// contextEnds: a lock whose holder has gone without releasing it is not extended for ever.
func contextEnds(s *suite) {
	a, b := s.locker(), s.locker()
	ctx, cancel := context.WithCancel(s.within(patience))
	lease := s.acquireWith(ctx, a, nil)
	cancel()
	s.ends(lease, patience, context.Canceled)
	s.held(b) // he may be at work still
	other := s.acquire(b, nil)
	s.is(lease.Release(), lock.ErrLost)
	s.lives(other)
	s.check(other.Release())
}

// reentrant: an owner has his lock again at once; it is free when he has released it as often.
func reentrant(s *suite) {
	a, b := s.locker(), s.locker()
	ctx := lock.WithOwner(s.within(patience))
	first := s.acquireWith(ctx, a, nil)
	second, err := a.TryAcquire(ctx, s.name, nil)
	s.check(err)
	third := s.acquireWith(first.Context(), a, nil) // made from his
	if second.Token() != first.Token() {
		s.Errorf("tokens %d and %d of one lock", first.Token(), second.Token())
	}
	_, err = a.TryAcquire(lock.WithOwner(ctx), s.name, nil)
	s.is(err, lock.ErrHeld)
	s.held(a)
	s.check(first.Release()) // in any order
	s.check(first.Release()) // once more, which counts once
	s.check(first.Release())
	s.ends(first, patience, lock.ErrReleased)
	s.lives(second)
	s.ends(third, patience, lock.ErrReleased) // for it was made from the first's
	time.Sleep(3 * s.b.TTL / 2)               // it is extended still
	s.lives(second)
	s.held(b)
	s.check(third.Release())
	s.held(b)
	s.check(second.Release())
	s.check(s.acquire(b, nil).Release())
}

// ownersJoin: goroutines of one owner that wait for a lock get it together; others wait.
func ownersJoin(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(b, nil)
	ctx := lock.WithOwner(s.within(patience))
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
			together.Wait() // all three have it
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
