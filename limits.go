package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cacheaside/cacheaside/internal/limit"
)

// newDoor is what stands in front of the load function.
func (l *Loader[K, V]) newDoor() limit.Door {
	o := l.cache.options
	return limit.Door{
		Breaker:  limit.NewBreaker(l.options.BreakAt, l.options.BreakFor, l.broken),
		Own:      limit.New(limit.Options{AtOnce: l.options.MaxLoads, Queue: o.MaxQueue}),
		Shared:   l.cache.limit,
		Patience: o.QueueTimeout,
	}
}

// broken notes that the circuit breaker has opened, or closed.
func (l *Loader[K, V]) broken(open bool) {
	if open {
		l.cache.journal.warn("the circuit breaker is open: most loads have failed", l.name, nil)
	} else {
		l.cache.journal.inform("the circuit breaker is closed", l.name)
	}
}

// admit waits until a call of the load function may be made, or tells why it is not to be.
func (l *Loader[K, V]) admit(ctx context.Context, background bool) (*limit.Pass, error) {
	pass, err := l.door.Enter(ctx, limit.Call{Background: background, Within: passOf(ctx)})
	if refusal, ok := errors.AsType[limit.Refusal](err); ok {
		l.counters.unavailable.Add(1)
		err = fmt.Errorf("%w: %w", ErrUnavailable, refusal)
		if last := l.lastFailure.Load(); last != nil && errors.Is(refusal, limit.ErrOpen) {
			err = fmt.Errorf("%w; the last load that failed: %.200s", err, *last)
		}
	}
	if err == nil && l.closing() { // the place is that of a load that Close has stopped, before it stops this one
		pass.Leave()
		pass.End(limit.Stopped)
		err = ErrClosed
	}
	return pass, err
}

func (l *Loader[K, V]) closing() bool { return l.life.Err() != nil }

// notMade is what n keys get of a call that was not made.
func notMade[V any](n int, err error) []loaded[V] {
	return slices.Repeat([]loaded[V]{{err: err, spared: true}}, n)
}

// judge tells the circuit breaker what a call has come to, which gave out. A call that was stopped and says so, by whatever error, is nobody's fault; one that was
// stopped, and even so had not returned when its time was up, is a failure.
func (l *Loader[K, V]) judge(ctx context.Context, err error, out []loaded[V]) limit.Verdict {
	switch answered := func(v loaded[V]) bool { return v.err == nil }; {
	case slices.ContainsFunc(out, answered), l.noRow(err):
		return limit.Succeeded
	case slices.ContainsFunc(out, func(v loaded[V]) bool { return v.spared }):
		return limit.Stopped
	case ctx.Err() != nil && !errors.Is(err, ErrLoadTimeout):
		return limit.Stopped
	default:
		text := err.Error()
		l.lastFailure.Store(&text)
		return limit.Failed
	}
}
