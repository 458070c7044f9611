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

// hold is a lock that this process holds. It has one lease, or several if an owner has acquired
// it more than once. They end with the hold.
//
// Locker.mu is locked before hold.mu.
type hold struct {
	l       *Locker
	request                 // request of the first lease
	ctx     *lent.Context   // has the values of the caller's context until Acquire returns; never ends
	held    context.Context // derived from ctx; ends, with a cause, when the lock is no longer held
	stop    context.CancelCauseFunc
	timeout time.Duration
	once    sync.Once     // guards release
	io      chan struct{} // semaphore for requests about this lock: an extension ends before the release starts

	mu           sync.Mutex
	lock         driver.Lock
	token        int64
	ttl          time.Duration
	until        time.Time // no other holder can get the lock before, with drift subtracted; monotonic
	maxUntil     time.Time // end of AcquireOptions.MaxHold; zero: no limit
	leases       map[*Lease]struct{}
	releaseErr   error
	expiryTimer  *time.Timer
	maxHoldTimer *time.Timer // ends the hold at maxUntil; nil: no limit
	renewTimer   *time.Timer // calls renew; nil: the lock is not extended automatically
	observeEnd   func(error) // notifies the observer of the end
}

var (
	errNotExtended = errors.New("not extended in time")
	errMaxHold     = errors.New("held for AcquireOptions.MaxHold")
	errGrantLate   = errors.New("the service granted the lock only after its TTL")
)

func newHold(l *Locker, r request, caller context.Context) *hold {
	h := &hold{l: l, request: r, ctx: lent.Values(caller), timeout: min(l.options.Timeout, r.options.TTL/4),
		io: make(chan struct{}, 1), leases: make(map[*Lease]struct{}, 1)}
	h.held, h.stop = context.WithCancelCause(h.ctx)
	return h
}

// endCause returns the cause for which the lock is no longer held, or nil while it is held.
func (h *hold) endCause() error { return context.Cause(h.held) }

// start starts the hold after the service has granted the lock. It releases a lock that was
// granted too late.
func (h *hold) start(g driver.Grant) error {
	h.mu.Lock()
	h.lock, h.token, h.ttl = g.Lock, g.Token, g.TTL
	h.until = g.Sent.Add(g.TTL - drift(g.TTL))
	left := time.Until(h.until)
	cause := h.endCause() // not nil if the driver has already reported the loss
	if cause == nil && left > 0 {
		if h.options.MaxHold > 0 {
			h.maxUntil = g.Sent.Add(h.options.MaxHold)
			h.maxHoldTimer = time.AfterFunc(time.Until(h.maxUntil), func() { h.lose(errMaxHold) })
		}
		h.observeEnd = h.l.observe(h.ctx, OpHold)
		h.expiryTimer = time.AfterFunc(left, h.expire)
		if !h.options.Fixed {
			h.renewTimer = time.AfterFunc(time.Until(g.Sent.Add(h.ttl/3)), h.renew)
		}
		h.mu.Unlock()
		return nil
	}
	h.mu.Unlock()
	return cmp.Or(h.finish(ErrReleased), cause, errGrantLate)
}

// join adds a lease to the hold. It returns nil if the hold has ended.
func (h *hold) join(caller context.Context) *Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.endCause() != nil {
		return nil
	}
	s := &Lease{hold: h}
	s.ctx, s.cancel = context.WithCancelCause(caller)
	h.leases[s] = struct{}{}
	return s
}

// expire ends the hold at its deadline. It resets the timer if the deadline has moved.
func (h *hold) expire() {
	h.mu.Lock()
	if left := time.Until(h.until); h.endCause() == nil && left > 0 {
		h.expiryTimer.Reset(left)
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	h.lose(errNotExtended)
}

// lose ends the leases, because another holder may get the lock from now on.
func (h *hold) lose(reason error) {
	if !errors.Is(reason, ErrLost) {
		reason = fmt.Errorf("%w: %w", ErrLost, reason)
	}
	h.mu.Lock()
	leases, wasGranted := h.end(reason), h.lock != nil
	h.mu.Unlock()
	for _, s := range leases {
		s.cancel(reason)
	}
	if len(leases) == 0 || !wasGranted { // it has ended already, or start will release it
		return
	}
	h.l.forget(h)
	if h.l.enter() {
		go h.releaseLost()
	}
}

// releaseLost releases a lost lock at the end of its TTL. Some services would keep it: a
// ZooKeeper session may live on.
func (h *hold) releaseLost() {
	defer h.l.background.Done()
	select {
	case <-time.After(drift(h.ttl)):
	case <-h.l.closing.Done():
	}
	h.finish(nil) //nolint:errcheck // the loss was reported already
}

// end records the cause of the end and returns the leases, or none if the hold has already ended.
// The caller holds h.mu.
func (h *hold) end(reason error) []*Lease {
	if h.endCause() != nil {
		return nil
	}
	h.stop(reason)
	if h.observeEnd != nil {
		h.observeEnd(lossOnly(reason))
	}
	for _, t := range []*time.Timer{h.expiryTimer, h.maxHoldTimer, h.renewTimer} {
		if t != nil {
			t.Stop()
		}
	}
	return slices.Collect(maps.Keys(h.leases))
}

// renew is the watchdog. It extends the lock after each third of its TTL, as long as the context
// of at least one lease has not ended.
func (h *hold) renew() {
	h.mu.Lock()
	if h.endCause() != nil {
		h.mu.Unlock()
		return
	}
	if !h.inUse() { // check again later: the owner may join
		h.renewTimer.Reset(h.ttl / 20)
		h.mu.Unlock()
		return
	}
	h.l.background.Add(1) // the lock is still held, so Close is not waiting yet
	h.mu.Unlock()
	defer h.l.background.Done()
	began := time.Now()
	err := h.extend(h.held)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.endCause() != nil:
	case err != nil: // the outcome is unknown: retry until the old deadline
		h.renewTimer.Reset(h.ttl / 20)
	default:
		h.renewTimer.Reset(time.Until(began.Add(h.ttl / 3)))
	}
}

func (h *hold) inUse() bool {
	for s := range h.leases {
		if s.ctx.Err() == nil {
			return true
		}
	}
	return false
}

// extend extends the lock by its TTL from now on. Until the service confirms that, the old
// deadline applies. Once the hold has ended, extend returns the cause; the end also cancels ctx
// and a request in progress.
func (h *hold) extend(ctx context.Context) error {
	began := time.Now()
	err := serviceError(ctx, h.extendHeld(ctx, h.ttl), "an extension", began)
	return cmp.Or(h.endCause(), err)
}

func (h *hold) extendHeld(ctx context.Context, ttl time.Duration) error {
	select {
	case h.io <- struct{}{}:
		defer func() { <-h.io }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	began := time.Now()
	h.mu.Lock()
	until := h.until
	h.mu.Unlock()
	if cause := h.endCause(); cause != nil {
		return cause
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
	if h.endCause() == nil {
		h.until = began.Add(ttl - drift(ttl))
		h.expiryTimer.Reset(time.Until(h.until))
	}
	return nil
}

// closeLease ends one lease. Ending the last one ends the hold.
func (h *hold) closeLease(s *Lease) error {
	h.mu.Lock()
	delete(h.leases, s)
	last, cause := len(h.leases) == 0, h.endCause()
	if last {
		h.end(ErrReleased)
	}
	h.mu.Unlock()
	if last {
		return h.finish(nil)
	}
	return lossOnly(cause)
}

// finish ends all leases with the cause why and releases the lock, once. It returns an error if
// the lock was lost or its release is not confirmed.
func (h *hold) finish(reason error) error {
	h.mu.Lock()
	leases := h.end(reason)
	h.mu.Unlock()
	for _, s := range leases {
		s.cancel(reason)
	}
	h.once.Do(func() {
		defer h.l.forget(h)
		h.releaseErr = h.release()
	})
	return cmp.Or(lossOnly(h.endCause()), h.releaseErr)
}

// lossOnly returns err if it is ErrLost, and nil otherwise.
func lossOnly(err error) error {
	if errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// A release is retried releaseRetries times before releaseLater does the rest. The first delay is
// firstRetryDelay, and it doubles with each retry.
const (
	releaseRetries  = 5
	firstRetryDelay = 2 * time.Millisecond
)

// release releases the lock in the service, after an extension in progress has ended.
func (h *hold) release() error {
	if h.lock == nil { // it was never granted
		return nil
	}
	end := time.Now().Add(2 * h.timeout) // an extension in progress may take half of this
	h.io <- struct{}{}
	defer func() { <-h.io }()
	began := time.Now()
	err := h.releaseOnce(h.timeout)
	unconfirmed := func() bool { return err != nil && !errors.Is(err, ErrLost) }
	// Retry if a reply or a connection was lost, but do not wait twice for a service that hangs.
	delay := firstRetryDelay
	for i := 0; i < releaseRetries && unconfirmed() && time.Since(began) < h.timeout/2 && time.Until(end) > delay; i++ {
		time.Sleep(delay)
		err = h.releaseOnce(min(time.Until(end), h.timeout))
		delay *= 2
	}
	if unconfirmed() {
		if h.l.enter() {
			go h.releaseLater()
		}
		err = fmt.Errorf("the release is not confirmed: %w",
			serviceError(context.Background(), err, "a release", began))
	}
	return err
}

func (h *hold) releaseOnce(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(h.ctx, timeout)
	defer cancel()
	return h.lock.Release(ctx)
}

// releaseLater retries the release until it is confirmed or the TTL has passed.
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
