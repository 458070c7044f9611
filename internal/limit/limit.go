// Package limit protects a database from those who load from it: how many calls there are at once, how many a second, how many wait for
// their turn and for how long; and a circuit breaker, which stops calls for a while when most of them fail.
package limit

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// Refusal is why a call was not made. Any other error of this package is why the caller's context has ended.
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

// Limit lets calls in, the oldest first. A nil Limit lets all in.
type Limit struct {
	places *semaphore.Weighted // nil: no limit
	rate   *rate.Limiter       // nil: no limit
	turn   *semaphore.Weighted // of those who wait for the rate: only the first has asked it, so that who gives up has taken nothing from the others

	queue   int64
	atOnce  int64
	taken   atomic.Int64 // places, about
	waiting atomic.Int64 // for a place, or for the rate
	behind  atomic.Int64 // of them, for the rate
}

// New makes a Limit: nil if it would limit nothing.
func New(o Options) *Limit {
	if o.AtOnce <= 0 && o.Rate <= 0 {
		return nil
	}
	l := &Limit{queue: int64(max(o.Queue, 0)), atOnce: int64(o.AtOnce)}
	if o.AtOnce > 0 {
		l.places = semaphore.NewWeighted(int64(o.AtOnce))
	}
	if o.Rate > 0 {
		l.rate = rate.NewLimiter(rate.Limit(o.Rate), max(1, int(o.Rate/10)))
		l.turn = semaphore.NewWeighted(1)
	}
	return l
}

// place is what a call takes of the places.
func place() int64 {
	return 1
}

// enter lets a call in, at once or when its turn has come. The place comes before the rate: what has been let in by the rate begins.
func (l *Limit) enter(p *patience, b *Breaker) error {
	if l == nil {
		return nil
	}
	queued := false
	defer func() {
		if queued {
			l.waiting.Add(-1)
		}
	}()
	if l.places != nil && !l.places.TryAcquire(place()) {
		if !l.join() {
			return ErrFull
		}
		queued = true
		if err := p.acquire(l.places, place()); err != nil {
			return err
		}
	}
	l.taken.Add(1)
	if l.rate == nil {
		return nil
	}
	err := b.Check() // before it uses the rate
	switch {
	case err != nil:
	case l.quick():
	case !queued && !l.join():
		err = ErrFull
	default:
		queued = true
		err = l.await(p, b)
	}
	if err != nil {
		l.leave()
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
		return l.places == nil || l.taken.Load() < l.atOnce
	}
}

// leave gives a call's place up.
func (l *Limit) leave() {
	if l == nil {
		return
	}
	l.taken.Add(-1)
	if l.places != nil {
		l.places.Release(place())
	}
}

// join takes a place in the queue.
func (l *Limit) join() bool {
	if l.waiting.Add(1) > l.queue {
		l.waiting.Add(-1)
		return false
	}
	return true
}

// quick tells whether the rate lets a call begin at once, which it does not before those who wait for it.
func (l *Limit) quick() bool {
	return l.behind.Load() == 0 && l.rate.Allow()
}

// await waits until the rate lets a call begin. What the breaker does not let through uses nothing of the rate.
func (l *Limit) await(p *patience, b *Breaker) error {
	l.behind.Add(1)
	defer l.behind.Add(-1)
	if err := p.acquire(l.turn, 1); err != nil {
		if errors.Is(err, ErrLate) {
			return ErrRate
		}
		return err
	}
	defer l.turn.Release(1)
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
