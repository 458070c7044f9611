package lock

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/cacheaside/cacheaside/internal/lent"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// queue is those of this process who want one lock. One of them contends for it with other
// processes: so a lock that is wanted by many here is not asked for by many there.
type queue struct {
	held    *hold     // what this process has; nil: nothing
	turn    *waiter   // the one that contends; nil: nobody
	waiting []*waiter // for their turn
}

type waiter struct {
	owner *owner
	ready chan *hold // his turn (nil), or a hold of the same owner; takes one. No channel: it is his turn
	stop  context.CancelCauseFunc
}

// errOwn ends the request of a caller whose owner has got the lock meanwhile, by a TryAcquire: the
// owner would wait for itself.
var errOwn = errors.New("its owner holds it")

// queue waits for the caller's turn and gets the lock, or joins the lock that the caller's owner
// has.
func (l *Locker) queue(ctx, caller context.Context, r request) (*Lease, error) {
	for {
		lease, err := l.queueOnce(ctx, caller, r)
		if !errors.Is(err, errOwn) {
			return lease, err
		}
	}
}

func (l *Locker) queueOnce(ctx, caller context.Context, r request) (*Lease, error) {
	turn, stop := ctx, context.CancelCauseFunc(nil)
	if r.owner != nil { // who may get it otherwise meanwhile
		turn, stop = context.WithCancelCause(ctx)
		defer stop(nil)
	}
	w, lease, err := l.line(caller, r, stop)
	if lease != nil || err != nil {
		return lease, err
	}
	if w == nil { // a caller that does not wait passes by those that do
		lease, err := l.contend(ctx, caller, r)
		if r.owner != nil && errors.Is(err, ErrHeld) { // perhaps his owner has it since
			if _, own, _ := l.line(caller, r, stop); own != nil {
				return own, nil
			}
		}
		return lease, err
	}
	if w.ready != nil {
		select {
		case h := <-w.ready:
			if h == nil {
				break
			}
			if lease := h.join(caller); lease != nil {
				return lease, nil
			}
			return nil, errOwn // he had it
		case <-ctx.Done():
			l.quit(r.key, w)
			return nil, context.Cause(ctx)
		}
	}
	defer l.pass(r.key, w)
	lease, err = l.contend(turn, caller, r)
	if err != nil && errors.Is(context.Cause(turn), errOwn) {
		err = errOwn
	}
	return lease, err
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
	lease, older := l.got(h, caller)
	if older != nil {
		older.lose(errTwice)
	}
	if lease != nil {
		return lease, nil
	}
	return nil, cmp.Or(h.finish(ErrReleased), ErrClosed)
}

// line makes the caller stand in line; it returns a lease if the caller's owner has the lock, and
// neither if the caller does not wait and may try.
func (l *Locker) line(caller context.Context, r request, stop context.CancelCauseFunc) (*waiter, *Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.names[r.key]
	if q != nil && q.held != nil && r.owner != nil && q.held.owner == r.owner {
		if lease := q.held.join(caller); lease != nil {
			return nil, lease, nil
		}
	}
	if !r.wait {
		if q != nil && q.held != nil {
			return nil, nil, ErrHeld
		}
		return nil, nil, nil
	}
	if q == nil {
		q = &queue{}
		l.names[r.key] = q
	}
	w := &waiter{owner: r.owner, stop: stop}
	if q.held == nil && q.turn == nil && len(q.waiting) == 0 {
		q.turn = w
		return w, nil, nil
	}
	w.ready = make(chan *hold, 1)
	q.waiting = append(q.waiting, w)
	l.next(r.key, q)
	return w, nil, nil
}

// next gives the turn to the first in line, if nobody here has it or the lock. With l.mu held.
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
	q.turn.ready <- nil
}

// got notes what the service has granted, and lets those have it too whose owner has it. It answers
// nil if that came too late; and which hold is lost, if the service has granted the lock twice.
func (l *Locker) got(h *hold, caller context.Context) (lease *Lease, older *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil
	}
	q := l.names[h.key]
	if q != nil && q.held != nil {
		if older = q.held; h.token > 0 && h.token < older.token {
			return nil, h
		}
	}
	if lease = h.join(caller); lease == nil {
		return nil, older
	}
	if q == nil {
		q = &queue{}
		l.names[h.key] = q
	}
	q.held = h
	if h.owner != nil {
		q.share(h)
	}
	return lease, older
}

// share lets those who wait have what their owner has.
func (q *queue) share(h *hold) {
	if w := q.turn; w != nil && w.owner == h.owner { // he asks the service, or is h's own and is ready
		w.stop(errOwn)
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter) bool {
		if w.owner == h.owner {
			w.ready <- h
		}
		return w.owner == h.owner
	})
}

// pass ends the turn of w.
func (l *Locker) pass(key string, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.names[key]; q != nil && q.turn == w {
		q.turn = nil
		l.next(key, q)
	}
}

// quit takes w out of the line, or ends the turn that w has been given meanwhile.
func (l *Locker) quit(key string, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.names[key]
	if q == nil {
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
