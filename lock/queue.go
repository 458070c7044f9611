package lock

import (
	"cmp"
	"context"
	"slices"

	"github.com/cacheaside/cacheaside/internal/lent"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// queue holds the callers of this process that want one lock. Only one of them at a time competes
// with other processes, so many waiting callers do not cause many requests.
type queue struct {
	held      *hold     // lock that this process holds; nil: none
	contender *waiter   // caller that requests the lock from the service; nil: none
	waiting   []*waiter // callers that wait to become the contender
}

type waiter struct {
	owner *owner
	// closed when the waiter becomes the contender or its owner gets the lock; nil: contends at
	// once
	ready    chan struct{}
	contends bool // whether it is the contender; written before ready is closed
}

// acquireInTurn waits until the caller becomes the contender and acquires the lock, or joins a
// lock that the caller's owner already holds.
func (l *Locker) acquireInTurn(ctx, caller context.Context, r request) (*Lease, error) {
	if r.kind != driver.Exclusive && !r.wait { // the contender may wait although there is a permit
		return l.contend(ctx, caller, r)
	}
	w, lease, err := l.awaitTurn(ctx, caller, r)
	if w == nil {
		return lease, err
	}
	defer l.dequeue(r.queue(), w)
	return l.contend(ctx, caller, r)
}

// awaitTurn returns the caller's waiter when it has become the contender. The caller must dequeue
// it. If awaitTurn returns no waiter, it returns a lease or an error.
func (l *Locker) awaitTurn(ctx, caller context.Context, r request) (*waiter, *Lease, error) {
	for {
		w, lease, err := l.enqueue(caller, r)
		if lease != nil || err != nil {
			return nil, lease, err
		}
		if w.ready != nil {
			select {
			case <-w.ready:
			case <-ctx.Done():
				l.dequeue(r.queue(), w)
				return nil, nil, context.Cause(ctx)
			}
		}
		if w.contends {
			return w, nil, nil
		}
	}
}

// contend requests the lock from the service.
func (l *Locker) contend(ctx, caller context.Context, r request) (*Lease, error) {
	ctx, loan := lent.Whole(ctx) // requests may outlive the call
	defer loan.End()
	h := newHold(l, r, caller)
	defer h.ctx.End()
	g, err := l.driver.Acquire(ctx, l.driverRequest(r, h.timeout, h.lose))
	if err != nil {
		return nil, err
	}
	return l.begin(h, g, caller)
}

// begin starts a hold that the service has granted, and returns its first lease.
func (l *Locker) begin(h *hold, g driver.Grant, caller context.Context) (*Lease, error) {
	if err := h.start(g); err != nil {
		return nil, err
	}
	if lease := l.granted(h, caller); lease != nil {
		return lease, nil
	}
	return nil, cmp.Or(h.finish(ErrReleased), ErrClosed)
}

// enqueue adds the caller to the queue, or returns a lease if the caller's owner holds the lock.
// A caller that does not wait becomes the contender at once or gets ErrHeld.
func (l *Locker) enqueue(caller context.Context, r request) (*waiter, *Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.names[r.queue()]
	if q == nil {
		q = &queue{}
		l.names[r.queue()] = q
	}
	if q.held != nil && r.owner != nil && q.held.owner == r.owner {
		if lease := q.held.join(caller); lease != nil {
			return nil, lease, nil
		}
	}
	w := &waiter{owner: r.owner}
	switch {
	case q.held == nil && q.contender == nil:
		w.contends, q.contender = true, w
	case !r.wait:
		return nil, nil, ErrHeld
	default:
		w.ready = make(chan struct{})
		q.waiting = append(q.waiting, w)
	}
	return w, nil, nil
}

// promote makes the first waiter the contender, unless this process has a contender or the lock.
// The caller holds l.mu.
func (l *Locker) promote(key string, q *queue) {
	if q.held != nil || q.contender != nil {
		return
	}
	if len(q.waiting) == 0 {
		delete(l.names, key)
		return
	}
	q.contender = q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	q.contender.contends = true
	close(q.contender.ready)
}

// granted records a granted lock, and wakes waiters with the same owner so that they join it. It
// returns nil if the hold has already ended or the Locker is closed.
func (l *Locker) granted(h *hold, caller context.Context) *Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	lease := h.join(caller)
	if lease == nil {
		return nil
	}
	l.holds[h] = struct{}{}
	if h.kind != driver.Exclusive { // others may hold it, too
		return lease
	}
	q := l.names[h.queue()] // exists, because the caller is its contender
	q.held = h
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter) bool {
		sameOwner := h.owner != nil && w.owner == h.owner
		if sameOwner {
			close(w.ready)
		}
		return sameOwner
	})
	return lease
}

// dequeue removes w from the queue, or ends its role as the contender.
func (l *Locker) dequeue(key string, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.names[key]
	if q == nil { // the owner of w got the lock and has released it
		return
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(o *waiter) bool { return o == w })
	if q.contender == w {
		q.contender = nil
	}
	l.promote(key, q)
}

// forget records that this process no longer holds a lock.
func (l *Locker) forget(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holds, h)
	if q := l.names[h.queue()]; q != nil && q.held == h {
		q.held = nil
		l.promote(h.queue(), q)
	}
}
