package limit

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// class orders those who wait: a place goes to the first class that has anybody.
type class uint8

const (
	resumed    class = iota // loads that have waited for others, and go on: until they do, what they have taken elsewhere is not free
	nested                  // loads that other loads ask for: what has begun ends first
	foreground              // loads that somebody waits for
	background              // loads in the background: a stale value is served meanwhile
	classes
)

// line is places, and those who wait for one. In each class the oldest is the first.
type semaphore struct {
	mu      sync.Mutex
	size    int
	taken   int // may be more than size: see owe
	waiting [classes]list.List
}

// waiter waits until it gets a place, or has to give up its own in the queue.
type waiter struct {
	done    chan struct{}
	dropped bool
}

// errDropped is why a waiter has no place: one that goes before it has taken its place in the
// queue.
var errDropped = errors.New("dropped")

// try takes a place if one is free: then nobody waits.
func (s *semaphore) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.size {
		return false
	}
	s.taken++
	return true
}

// free tells whether there is a place that nobody has. It takes none.
func (s *semaphore) hasFree() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken < s.size
}

// acquire waits for a place. Its error is errDropped, or ctx has ended.
func (s *semaphore) acquire(ctx context.Context, c class) error {
	if s.tryAcquire() {
		return nil
	}
	w := &waiter{done: make(chan struct{})}
	s.mu.Lock()
	at := s.waiting[c].PushBack(w)
	s.grant() // what was given up meanwhile
	s.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		select {
		case <-w.done:
			if !w.dropped { // it has come too late
				s.taken--
				s.grant()
			}
		default:
			s.waiting[c].Remove(at)
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

// owe takes a place that there is not: nobody gets one until it is given back.
func (s *semaphore) takeExtra() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken++
}

// release gives a place back.
func (s *semaphore) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.grant()
}

// grant gives the places that are free to those who wait. The line is locked.
func (s *semaphore) grant() {
	for c := range s.waiting {
		for q := &s.waiting[c]; s.taken < s.size && q.Len() > 0; s.taken++ {
			close(q.Remove(q.Front()).(*waiter).done)
		}
	}
}

// drop has the newest of a class give up, if one waits.
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
