// Package limit protects a database from those who load from it: how many calls there are at once,
// how many a second, how many wait for their turn and for how long; and a circuit breaker, which
// stops calls for a while when most of them fail.
package limit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside/internal/retry"
)

// Refusal is why a call was not made. Any other error of this package is why the caller's context
// has ended.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// The refusals.
const (
	ErrFull Refusal = "too many loads wait for their turn"
	ErrLate Refusal = "the load waited too long for its turn"
	ErrRate Refusal = "the rate of loads is used up"
	ErrOpen Refusal = "the circuit breaker is open, since most loads have failed"
)

// Options are what a Limit allows.
type Options struct {
	AtOnce int     // calls at once; 0 or less: any number
	Rate   float64 // calls that begin in a second, after a burst of a tenth of that; 0: any number
	Queue  int     // calls that wait; 0 or less: none
}

// Limit lets calls in, by class, and of each class the oldest first. A nil Limit lets all in.
type Limit struct {
	places   *semaphore    // nil: no limit
	rate     *rate.Limiter // nil: no limit
	rateTurn *semaphore    // of those who wait for the rate: only the first has asked it, so that a call that gives up has taken nothing from the others

	queue          int64
	waiting        atomic.Int64 // for a place, or for the rate; not what is within other loads, which is as many as those ask for
	waitingForRate atomic.Int64 // for the rate
}

// New makes a Limit: nil if it would limit nothing.
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

// enter lets a call in, at once or when its turn has come. The place comes before the rate: what
// has been let in by the rate begins.
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

// idle tells whether a call would be let in at once.
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

// enterPlace waits for a place. queued tells whether the call is counted among those who wait.
func (l *Limit) enterPlace(p *boundedWait, c class) (queued bool, err error) {
	if l.tryPlace() {
		return false, nil
	}
	if !l.joinQueue(c) {
		return false, ErrFull
	}
	err = p.acquire(l.places, c)
	if err == errDropped { //nolint:errorlint // it is never wrapped
		return false, ErrFull // another has its place in the queue
	}
	return c != nested, err
}

// begin waits until the rate lets a call begin that has its place. Calls in the background do not
// wait for that: others would wait behind them.
func (l *Limit) enterRate(p *boundedWait, b *Breaker, c class, queued bool) (stillQueued bool, err error) {
	if l.rate == nil {
		return queued, nil
	}
	if err := b.Check(); err != nil { // before it uses the rate
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

// resume takes a place for a call that has lent its own. It waits for that until ctx ends; then it
// takes one that there is not.
func (l *Limit) reacquire(ctx context.Context) {
	if l != nil && l.places != nil && l.places.acquire(ctx, resumed) != nil {
		l.places.takeExtra()
	}
}

// leave gives a call's place up.
func (l *Limit) leave() {
	if l != nil && l.places != nil {
		l.places.release()
	}
}

// join takes a place in the queue. Where that is full, calls in the background make room.
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

// quick tells whether the rate lets a call begin at once, which it does not before those who wait
// for it.
func (l *Limit) allowNow() bool {
	return l.waitingForRate.Load() == 0 && l.rate.Allow()
}

// await waits until the rate lets a call begin. A call that the breaker does not let through uses
// nothing of the rate.
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

// boundedWait is how long one call waits, whatever for. Its clock starts when it first has to.
type boundedWait struct {
	ctx   context.Context
	limit time.Duration

	bound  context.Context // nil: it has not waited yet
	cancel context.CancelFunc
}

func (b *boundedWait) begin() context.Context {
	if b.bound == nil {
		b.bound, b.cancel = context.WithTimeout(b.ctx, b.limit)
	}
	return b.bound
}

// end frees what waiting has taken.
func (b *boundedWait) end() {
	if b.cancel != nil {
		b.cancel()
	}
}

// acquire waits for a place in s, or until it is dropped.
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

// pause waits for the rate: not at all if it would be in vain.
func (b *boundedWait) pause(d time.Duration) error {
	bound := b.begin()
	if end, ok := bound.Deadline(); ok && b.ctx.Err() == nil && time.Until(end) < d {
		if own, ok := b.ctx.Deadline(); !ok || own.After(end) { // else the call's own context ends first, which is what it is to be told
			return ErrRate
		}
	}
	return retry.Sleep(b.ctx, d)
}
