// Package limit protects a database from excessive loads. It limits the number of concurrent
// calls, the rate of calls, the number of waiting calls and the time that they wait. A circuit
// breaker rejects calls for a while when most of them fail.
package limit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside/internal/retry"
)

// A Refusal is the reason why a call was not made. Any other error of this package is the cause
// of the end of the caller's context.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// The refusals.
const (
	ErrFull Refusal = "too many loads are waiting"
	ErrLate Refusal = "the load waited too long"
	ErrRate Refusal = "the rate limit of loads is exceeded"
	ErrOpen Refusal = "the circuit breaker is open because most loads have failed"
)

// Options are the limits of a Limit.
type Options struct {
	AtOnce int     // maximum number of concurrent calls; 0 or less: unlimited
	Rate   float64 // calls per second, with a burst of a tenth of that; 0: unlimited
	Queue  int     // maximum number of waiting calls; 0 or less: none
}

// A Limit admits calls by class, and within a class in the order of arrival. A nil Limit admits
// all calls.
type Limit struct {
	places *semaphore    // nil if there is no limit
	rate   *rate.Limiter // nil if there is no limit
	// Of the calls that wait for the rate, only the first has a reservation. So a call that gives
	// up has not delayed the others.
	rateTurn *semaphore

	queue int64

	// Calls that wait for a place or for the rate, except nested ones: the number of these is
	// limited by the calls that make them.
	waiting        atomic.Int64
	waitingForRate atomic.Int64 // calls that wait for the rate
}

// New returns a Limit, or nil if it would limit nothing.
func New(o Options) *Limit {
	if o.AtOnce <= 0 && o.Rate <= 0 {
		return nil
	}
	l := &Limit{queue: int64(max(o.Queue, 0))}
	if o.AtOnce > 0 {
		l.places = &semaphore{size: o.AtOnce}
	}
	if o.Rate > 0 {
		l.rate = rate.NewLimiter(rate.Limit(o.Rate), max(1, int(o.Rate/10)))
		l.rateTurn = &semaphore{size: 1}
	}
	return l
}

// enter admits a call, immediately or after a wait. A call first waits for a place and then for the
// rate, so that it starts when the rate admits it.
func (l *Limit) enter(p *boundedWait, b *Breaker, c class) error {
	if l == nil {
		return nil
	}
	queued, err := l.enterPlace(p, c)
	if err == nil {
		if queued, err = l.enterRate(p, b, c, queued); err != nil {
			l.leave()
		}
	}
	if queued {
		l.waiting.Add(-1)
	}
	return err
}

// idle reports whether a call would be admitted immediately.
func (l *Limit) idle() bool {
	switch {
	case l == nil:
		return true
	case l.waiting.Load() > 0, l.rate != nil && l.rate.Tokens() < 1:
		return false
	default:
		return l.places == nil || l.places.hasFree()
	}
}

// enterPlace waits for a place. queued reports whether the call is counted in waiting.
func (l *Limit) enterPlace(p *boundedWait, c class) (queued bool, err error) {
	if l.tryPlace() {
		return false, nil
	}
	if !l.joinQueue(c) {
		return false, ErrFull
	}
	err = p.acquire(l.places, c)
	if err == errDropped { //nolint:errorlint // it is never wrapped
		return false, ErrFull // another call has taken its place in the queue
	}
	return c != nested, err
}

// enterRate waits until the rate admits a call that already has a place. Background calls do not
// wait for the rate, because other calls would wait behind them.
func (l *Limit) enterRate(p *boundedWait, b *Breaker, c class, queued bool) (stillQueued bool, err error) {
	if l.rate == nil {
		return queued, nil
	}
	if err := b.Check(); err != nil { // before the call uses up the rate
		return queued, err
	}
	switch {
	case l.allowNow():
		return queued, nil
	case c == background:
		return queued, ErrRate
	case !queued && !l.joinQueue(c):
		return false, ErrFull
	}
	return c != nested, l.waitForRate(p, b, c)
}

// tryPlace takes a place if one is free.
func (l *Limit) tryPlace() bool { return l == nil || l.places == nil || l.places.tryAcquire() }

// reacquire takes a place for a call that has lent its own. It waits until ctx ends, and then
// takes a place above the limit.
func (l *Limit) reacquire(ctx context.Context) {
	if l != nil && l.places != nil && l.places.acquire(ctx, resumed) != nil {
		l.places.takeExtra()
	}
}

// leave releases a call's place.
func (l *Limit) leave() {
	if l != nil && l.places != nil {
		l.places.release()
	}
}

// joinQueue adds a call to the queue. If the queue is full, a foreground call replaces a
// background call.
func (l *Limit) joinQueue(c class) bool {
	if c == nested {
		return true
	}
	if l.waiting.Add(1) > l.queue {
		l.waiting.Add(-1)
		return c == foreground && l.places != nil && l.places.dropNewest(background)
	}
	return true
}

// allowNow reports whether the rate admits a call immediately. Calls that already wait for the
// rate come first.
func (l *Limit) allowNow() bool {
	return l.waitingForRate.Load() == 0 && l.rate.Allow()
}

// waitForRate waits until the rate admits a call. A call that the breaker rejects does not use up
// the rate.
func (l *Limit) waitForRate(p *boundedWait, b *Breaker, c class) error {
	l.waitingForRate.Add(1)
	defer l.waitingForRate.Add(-1)
	if err := p.acquire(l.rateTurn, c); err != nil {
		if errors.Is(err, ErrLate) {
			return ErrRate
		}
		return err
	}
	defer l.rateTurn.release()
	if err := b.Check(); err != nil {
		return err
	}
	now := time.Now()
	r := l.rate.ReserveN(now, 1)
	err := p.pause(r.DelayFrom(now))
	if err != nil {
		r.Cancel()
	}
	return err
}

// boundedWait limits the total time that a call waits. Its clock starts with the first wait.
type boundedWait struct {
	ctx   context.Context
	limit time.Duration

	bound  context.Context // nil before the first wait
	cancel context.CancelFunc
}

func (b *boundedWait) begin() context.Context {
	if b.bound == nil {
		b.bound, b.cancel = context.WithTimeout(b.ctx, b.limit)
	}
	return b.bound
}

// end releases the timer.
func (b *boundedWait) end() {
	if b.cancel != nil {
		b.cancel()
	}
}

// acquire waits for a place in s, or until the waiter is dropped.
func (b *boundedWait) acquire(s *semaphore, c class) error {
	err := s.acquire(b.begin(), c)
	switch {
	case err == nil, err == errDropped: //nolint:errorlint // it is never wrapped
		return err
	case b.ctx.Err() != nil:
		return context.Cause(b.ctx)
	default:
		return ErrLate
	}
}

// pause waits for the rate. It returns immediately if the wait would exceed the limit.
func (b *boundedWait) pause(d time.Duration) error {
	bound := b.begin()
	if end, ok := bound.Deadline(); ok && b.ctx.Err() == nil && time.Until(end) < d {
		// otherwise the error is that of the call's context, which ends first
		if deadline, ok := b.ctx.Deadline(); !ok || deadline.After(end) {
			return ErrRate
		}
	}
	return retry.Sleep(b.ctx, d)
}
