package limit

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// A class is a priority of waiting calls. A free place goes to the first class that has a waiting
// call.
type class uint8

const (
	// Loads that continue after a wait for others. Until they continue, the resources that they
	// hold elsewhere stay occupied.
	resumed    class = iota
	nested           // loads that other loads wait for: started work ends first
	foreground       // loads that callers wait for
	background       // loads in the background, while callers are served a stale value
	classes
)

// A semaphore is a number of places, and the queue of calls that wait for one. Each class is
// served in the order of arrival.
type semaphore struct {
	mu      sync.Mutex
	size    int
	taken   int // may exceed size: see takeExtra
	waiting [classes]list.List
}

// A waiter waits until it gets a place, or is dropped from the queue.
type waiter struct {
	done    chan struct{}
	dropped bool
}

// errDropped is the error of a waiter that was dropped, because another call has replaced it in
// the queue.
var errDropped = errors.New("dropped")

// tryAcquire takes a place if one is free.
func (s *semaphore) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.size {
		return false
	}
	s.taken++
	return true
}

// hasFree reports whether a place is free. It does not take it.
func (s *semaphore) hasFree() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken < s.size
}

// acquire waits for a place. It returns errDropped, or an error if ctx has ended.
func (s *semaphore) acquire(ctx context.Context, c class) error {
	if s.tryAcquire() {
		return nil
	}
	w := &waiter{done: make(chan struct{})}
	s.mu.Lock()
	place := s.waiting[c].PushBack(w)
	s.grant() // places that were released since tryAcquire
	s.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		select {
		case <-w.done:
			if !w.dropped { // the place was granted too late
				s.taken--
				s.grant()
			}
		default:
			s.waiting[c].Remove(place)
		}
		if !w.dropped {
			return ctx.Err()
		}
	}
	if w.dropped {
		return errDropped
	}
	return nil
}

// takeExtra takes a place above size. No place is granted until that many have been released.
func (s *semaphore) takeExtra() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken++
}

// release releases a place.
func (s *semaphore) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.grant()
}

// grant grants free places to waiters. The semaphore is locked.
func (s *semaphore) grant() {
	for c := range s.waiting {
		for q := &s.waiting[c]; s.taken < s.size && q.Len() > 0; s.taken++ {
			close(q.Remove(q.Front()).(*waiter).done)
		}
	}
}

// dropNewest drops the newest waiter of a class, if there is one.
func (s *semaphore) dropNewest(c class) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.waiting[c]
	if q.Len() == 0 {
		return false
	}
	w := q.Remove(q.Back()).(*waiter)
	w.dropped = true
	close(w.done)
	return true
}
