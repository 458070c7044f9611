package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lent"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// hold is a lock that this process has. Its leases, of which there is one unless an owner has
// acquired it more than once, end with it.
//
// Locks are taken in the order Locker.mu, hold.mu.
type hold struct {
	l       *Locker
	request                 // of the first
	ctx     *lent.Context   // has the values of the caller of Acquire until that returns; never ends
	running context.Context // made from ctx; ends when the lock is no longer held, and its cause is why
	stop    context.CancelCauseFunc
	timeout time.Duration
	once    sync.Once     // release
	io      chan struct{} // holds one while a request of this lock is under way: an extension is over before the release begins

	mu       sync.Mutex
	lock     driver.Lock
	token    int64
	ttl      time.Duration
	until    time.Time // nobody else can have it before, less drift; by the monotonic clock
	last     time.Time // of Options.MaxHold; zero: none
	leases   map[*Lease]struct{}
	released error
	deadline *time.Timer
	limit    *time.Timer // of Options.MaxHold; nil: none
	watchdog *time.Timer // nil: it is not extended by itself
	observed func(error) // when it is over
}

var (
	errLate    = errors.New("not extended in time")
	errMaxHold = errors.New("held for Options.MaxHold")
	errTooLate = errors.New("the service took as long to answer as the lock lives")
)

func newHold(l *Locker, r request, caller context.Context) *hold {
	h := &hold{l: l, request: r, ctx: lent.Values(caller), timeout: min(l.options.Timeout, r.options.TTL/4), io: make(chan struct{}, 1), leases: make(map[*Lease]struct{}, 1)}
	h.running, h.stop = context.WithCancelCause(h.ctx)
	return h
}

// over returns why the lock is no longer held; nil while it is.
func (h *hold) over() error { return context.Cause(h.running) }

// begin is when the service has granted the lock. If that came too late, it is released again.
func (h *hold) begin(g driver.Grant) error {
	h.mu.Lock()
	h.lock, h.token, h.ttl = g.Lock, g.Token, g.TTL
	h.until = g.Sent.Add(g.TTL - drift(g.TTL))
	left := time.Until(h.until)
	over := h.over() // the driver may know already that it is lost
	if over == nil && left > 0 {
		if h.options.MaxHold > 0 {
			h.last = g.Sent.Add(h.options.MaxHold)
			h.limit = time.AfterFunc(time.Until(h.last), func() { h.lose(errMaxHold) })
		}
		h.observed = h.l.observe(h.ctx, OpHold)
		h.deadline = time.AfterFunc(left, h.overdue)
		if !h.options.Fixed {
			h.watchdog = time.AfterFunc(time.Until(g.Sent.Add(h.ttl/3)), h.renew)
		}
		h.mu.Unlock()
		return nil
	}
	h.mu.Unlock()
	return cmp.Or(h.finish(ErrReleased), over, errTooLate)
}

// join makes one more lease of it, or nil if it is over.
func (h *hold) join(caller context.Context) *Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over() != nil {
		return nil
	}
	s := &Lease{hold: h}
	s.ctx, s.cancel = context.WithCancelCause(caller)
	h.leases[s] = struct{}{}
	return s
}

// overdue is called at the deadline, or before it if that has moved.
func (h *hold) overdue() {
	h.mu.Lock()
	if left := time.Until(h.until); h.over() == nil && left > 0 {
		h.deadline.Reset(left)
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	h.lose(errLate)
}

// lose ends the leases: the lock may be another's from now on.
func (h *hold) lose(why error) {
	if !errors.Is(why, ErrLost) {
		why = fmt.Errorf("%w: %w", ErrLost, why)
	}
	h.mu.Lock()
	leases, granted := h.end(why), h.lock != nil
	h.mu.Unlock()
	for _, s := range leases {
		s.cancel(why)
	}
	if len(leases) == 0 || !granted { // it was over before; or is not yet granted, and will be released by begin
		return
	}
	h.l.drop(h)
	if h.l.enter() {
		go h.releaseLost()
	}
}

// releaseLost ends a lock that nobody extends any more, at the end of its life, where the service
// would not do so by itself: a session may live on.
func (h *hold) releaseLost() {
	defer h.l.background.Done()
	select {
	case <-time.After(drift(h.ttl)):
	case <-h.l.closing.Done():
	}
	h.finish(nil) //nolint:errcheck // it is lost
}

// end notes why it is over, and returns the leases; none if it was over before. With h.mu held.
func (h *hold) end(why error) []*Lease {
	if h.over() != nil {
		return nil
	}
	h.stop(why)
	if h.observed != nil {
		h.observed(lost(why))
	}
	for _, t := range []*time.Timer{h.deadline, h.limit, h.watchdog} {
		if t != nil {
			t.Stop()
		}
	}
	return slices.Collect(maps.Keys(h.leases))
}

// renew is the watchdog: it extends the lock at each third of its life, as long as the context of
// one of its leases lives.
func (h *hold) renew() {
	h.mu.Lock()
	if h.over() != nil {
		h.mu.Unlock()
		return
	}
	if !h.lives() { // unless the owner joins it before its life is over
		h.watchdog.Reset(h.ttl / 20)
		h.mu.Unlock()
		return
	}
	h.l.background.Add(1) // while it is held, so before Close waits
	h.mu.Unlock()
	defer h.l.background.Done()
	began := time.Now()
	err := h.extend(h.running)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over() != nil:
	case err != nil: // not known: again, while the life of before lasts
		h.watchdog.Reset(h.ttl / 20)
	default:
		h.watchdog.Reset(time.Until(began.Add(h.ttl / 3)))
	}
}

func (h *hold) lives() bool {
	for s := range h.leases {
		if s.ctx.Err() == nil {
			return true
		}
	}
	return false
}

// extend has the lock live anew from now on. Until the service has said so, the deadline of before
// holds. Once it is over, the error is why: ctx ends with it, and so does a request that is under
// way.
func (h *hold) extend(ctx context.Context) error {
	began := time.Now()
	err := unanswered(ctx, h.extendHeld(ctx), "an extension", began)
	return cmp.Or(h.over(), err)
}

func (h *hold) extendHeld(ctx context.Context) error {
	select {
	case h.io <- struct{}{}:
		defer func() { <-h.io }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	began := time.Now()
	h.mu.Lock()
	until, ttl := h.until, h.ttl
	h.mu.Unlock()
	if over := h.over(); over != nil {
		return over
	}
	ctx, cancel := context.WithTimeout(ctx, min(time.Until(until), h.timeout))
	defer cancel()
	err := h.lock.Extend(ctx, ttl)
	if errors.Is(err, ErrLost) {
		h.lose(err)
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over() == nil {
		h.until = began.Add(ttl - drift(ttl))
		h.deadline.Reset(time.Until(h.until))
	}
	return nil
}

// leave ends one lease, and the hold with the last of them.
func (h *hold) leave(s *Lease) error {
	h.mu.Lock()
	delete(h.leases, s)
	last, over := len(h.leases) == 0, h.over()
	if last {
		h.end(ErrReleased)
	}
	h.mu.Unlock()
	if last {
		return h.finish(nil)
	}
	return lost(over)
}

// finish ends all leases, and releases the lock; once. The error is that of a lock that was lost
// before, or may not be released.
func (h *hold) finish(why error) error {
	h.mu.Lock()
	leases := h.end(why)
	h.mu.Unlock()
	for _, s := range leases {
		s.cancel(why)
	}
	h.once.Do(func() {
		defer h.l.drop(h)
		h.released = h.release()
	})
	return cmp.Or(lost(h.over()), h.released)
}

// lost is err if that is the loss of a lock.
func lost(err error) error {
	if errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// firstPause is the pause before a release is tried for the second time.
const firstPause = 2 * time.Millisecond

// release has the service end the lock, once the extension under way is over.
func (h *hold) release() error {
	if h.lock == nil { // never granted
		return nil
	}
	end := time.Now().Add(2 * h.timeout) // what is under way may take half of it
	h.io <- struct{}{}
	defer func() { <-h.io }()
	began := time.Now()
	err := h.releaseOnce(h.timeout)
	unknown := func() bool { return err != nil && !errors.Is(err, ErrLost) }
	// An answer was lost, or a connection: a service that hangs is not waited for twice.
	for pause := firstPause; unknown() && time.Since(began) < h.timeout/2 && time.Until(end) > pause; pause *= 2 {
		time.Sleep(pause)
		err = h.releaseOnce(min(time.Until(end), h.timeout))
	}
	if unknown() {
		if h.l.enter() {
			go h.releaseLater()
		}
		err = fmt.Errorf("not known to be released: %w", unanswered(context.Background(), err, "a release", began))
	}
	return err
}

func (h *hold) releaseOnce(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(h.ctx, timeout)
	defer cancel()
	return h.lock.Release(ctx)
}

// releaseLater goes on, until the lock is known to be released or has outlived itself.
func (h *hold) releaseLater() {
	defer h.l.background.Done()
	for end := time.Now().Add(h.ttl); time.Now().Before(end); {
		select {
		case <-time.After(h.ttl / 20):
		case <-h.l.closing.Done():
			return
		}
		if err := h.releaseOnce(h.timeout); err == nil || errors.Is(err, ErrLost) {
			return
		}
	}
}
