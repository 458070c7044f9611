package lock

import (
	"cmp"
	"context"
	"slices"

	"github.com/cacheaside/cacheaside/internal/lent"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// queue has the callers of this process that want one lock. One of them contends for it with other
// processes: so a lock that is wanted by many here is not asked for by many there.
type queue struct {
	held    *hold     // what this process has; nil: nothing
	turn    *waiter   // the one that contends; nil: none
	waiting []*waiter // for their turn
}

type waiter struct {
	owner *owner
	ready chan struct{} // closed when it has the turn, or its owner the lock; nil: it has the turn at once
	turn  bool          // written before ready is closed
}

// queue waits for the caller's turn and gets the lock, or joins the lock that the caller's owner
// has.
func (l *Locker) queue(ctx, caller context.Context, r request) (*Lease, error) {
	for {
		w, lease, err := l.line(caller, r)
		if lease != nil || err != nil {
			return lease, err
		}
		if w.ready != nil {
			select {
			case <-w.ready:
			case <-ctx.Done():
				l.quit(r.key, w)
				return nil, context.Cause(ctx)
			}
		}
		if w.turn {
			defer l.quit(r.key, w)
			return l.contend(ctx, caller, r)
		}
	}
}

// contend gets the lock from the service.
func (l *Locker) contend(ctx, caller context.Context, r request) (*Lease, error) {
	ctx, loan := lent.Whole(ctx) // requests may still be under way when the caller has left
	defer loan.End()
	h := newHold(l, r, caller)
	defer h.ctx.End()
	g, err := l.driver.Acquire(ctx, driver.Request{Key: r.key, TTL: r.options.TTL, Timeout: h.timeout, Wait: r.wait, NoToken: r.options.NoToken, Lost: h.lose})
	if err != nil {
		return nil, err
	}
	if err := h.begin(g); err != nil {
		return nil, err
	}
	if lease := l.got(h, caller); lease != nil {
		return lease, nil
	}
	return nil, cmp.Or(h.finish(ErrReleased), ErrClosed)
}

// line makes the caller stand in line, or returns a lease if the caller's owner has the lock. A
// caller that does not wait gets the turn at once, or ErrHeld.
func (l *Locker) line(caller context.Context, r request) (*waiter, *Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.names[r.key]
	if q == nil {
		q = &queue{}
		l.names[r.key] = q
	}
	if q.held != nil && r.owner != nil && q.held.owner == r.owner {
		if lease := q.held.join(caller); lease != nil {
			return nil, lease, nil
		}
	}
	w := &waiter{owner: r.owner}
	switch {
	case q.held == nil && q.turn == nil:
		w.turn, q.turn = true, w
	case !r.wait:
		return nil, nil, ErrHeld
	default:
		w.ready = make(chan struct{})
		q.waiting = append(q.waiting, w)
	}
	return w, nil, nil
}

// next gives the turn to the first in line, if no caller here has it or the lock. With l.mu held.
func (l *Locker) next(key string, q *queue) {
	if q.held != nil || q.turn != nil {
		return
	}
	if len(q.waiting) == 0 {
		delete(l.names, key)
		return
	}
	q.turn = q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	q.turn.turn = true
	close(q.turn.ready)
}

// got notes what the service has granted, and wakes those in line whose owner has it, to join it.
// It returns nil if the grant came too late.
func (l *Locker) got(h *hold, caller context.Context) *Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	lease := h.join(caller)
	if lease == nil {
		return nil
	}
	q := l.names[h.key] // the caller has its turn
	q.held = h
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter) bool {
		own := h.owner != nil && w.owner == h.owner
		if own {
			close(w.ready)
		}
		return own
	})
	return lease
}

// quit takes w out of the line, or ends its turn.
func (l *Locker) quit(key string, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.names[key]
	if q == nil { // its owner had the lock, and has released it
		return
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(o *waiter) bool { return o == w })
	if q.turn == w {
		q.turn = nil
	}
	l.next(key, q)
}

// drop notes that a lock is no longer held here.
func (l *Locker) drop(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.names[h.key]; q != nil && q.held == h {
		q.held = nil
		l.next(h.key, q)
	}
}
