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
type line struct {
	mu      sync.Mutex
	size    int
	taken   int // may be more than size: see owe
	waiting [classes]list.List
}

// waiter waits until it gets a place, or has to give up its own in the queue.
type waiter struct {
	over    chan struct{}
	dropped bool
}

// errDropped is why a waiter has no place: one that goes before it has taken its place in the
// queue.
var errDropped = errors.New("dropped")

// try takes a place if one is free: then nobody waits.
func (l *line) try() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken >= l.size {
		return false
	}
	l.taken++
	return true
}

// free tells whether there is a place that nobody has. It takes none.
func (l *line) free() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken < l.size
}

// acquire waits for a place. Its error is errDropped, or ctx has ended.
func (l *line) acquire(ctx context.Context, c class) error {
	if l.try() {
		return nil
	}
	w := &waiter{over: make(chan struct{})}
	l.mu.Lock()
	at := l.waiting[c].PushBack(w)
	l.grant() // what was given up meanwhile
	l.mu.Unlock()
	select {
	case <-w.over:
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		select {
		case <-w.over:
			if !w.dropped { // it has come too late
				l.taken--
				l.grant()
			}
		default:
			l.waiting[c].Remove(at)
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
func (l *line) owe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken++
}

// release gives a place back.
func (l *line) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken--
	l.grant()
}

// grant gives the places that are free to those who wait. The line is locked.
func (l *line) grant() {
	for c := range l.waiting {
		for q := &l.waiting[c]; l.taken < l.size && q.Len() > 0; l.taken++ {
			close(q.Remove(q.Front()).(*waiter).over)
		}
	}
}

// drop has the newest of a class give up, if one waits.
func (l *line) drop(c class) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &l.waiting[c]
	if q.Len() == 0 {
		return false
	}
	w := q.Remove(q.Back()).(*waiter)
	w.dropped = true
	close(w.over)
	return true
}
