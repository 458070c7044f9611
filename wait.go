package cacheaside

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// wait lets some time pass while other loads are under way, before looking again for what they have stored.
func (b *batch[K, V]) wait() {
	rounds := at(b.open, toWait)
	if len(rounds) == 0 {
		return
	}
	now := max(time.Since(b.l.start), 1)
	gap := time.Duration(math.MaxInt64)
	for _, r := range rounds {
		s := &r.Result
		if s.soft { // for a fresh value, which there may be before its patience ends
			gap = min(gap, s.patience-now, b.l.loadTime.pause(now-(s.patience-b.l.options.SoftTimeout)))
			continue
		}
		if s.waited == 0 {
			s.waited = now
			b.l.counters.waits.Add(1)
			if b.l.cache.options.Observer != nil {
				_, s.waiting = b.l.observe(b.ctx, OpWait, 1)
			}
		}
		waited := now - s.waited
		if waited > 2*b.l.options.LoadTimeout+b.l.cache.options.QueueTimeout { // who loads may have had to wait for his turn
			r.Err, s.step = ErrLoadTimeout, over
			continue
		}
		gap = min(gap, b.l.loadTime.pause(waited))
	}
	if others := len(at(b.open, toLook)) + len(at(b.open, toTake)); others > 0 || gap == math.MaxInt64 {
		gap = 0 // there is something to look for at once
	}
	for _, r := range at(rounds, toWait) {
		r.Result.step = toLook
	}
	pause(b.ctx, gap)
}

// waits ends the wait for another's load, if it is one.
func (s *state[V]) waits(err error) {
	if s.waiting != nil {
		s.waiting(err)
		s.waiting = nil
	}
}

// pause lets d pass, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// loadTime is about how long the loads of a loader take.
type loadTime struct{ nanos atomic.Int64 }

// observe takes one load into account: an exponential moving average, which needs no exact sum, so that a lost update is no harm.
func (t *loadTime) observe(took time.Duration) {
	old := t.nanos.Load()
	if old == 0 {
		old = int64(took)
	}
	t.nanos.Store(old + (int64(took)-old)/8)
}

// mean is about how long they take; 0 if that is not known.
func (t *loadTime) mean() time.Duration { return time.Duration(t.nanos.Load()) }

// pause is how long to wait before looking again for the result of another's load, after having waited for so long. A waiter does not know
// when that load began, so it looks from the start, but most often near the time that such a load takes: some five times before, some
// ten times around it, and if the load is longer, each tenth of what has been waited. With a quarter of jitter, so that waiters do not
// ask in step.
func (t *loadTime) pause(waited time.Duration) time.Duration {
	const unknown = 50 * time.Millisecond
	expected := time.Duration(cmp.Or(t.nanos.Load(), int64(unknown)))
	var gap time.Duration
	switch {
	case waited < expected*7/10:
		gap = min(expected/6, expected*3/4-waited)
	case waited < expected*13/10:
		gap = expected / 20
	default:
		gap = waited / 10
	}
	gap = min(max(gap, time.Millisecond), 100*time.Millisecond)
	return gap*3/4 + rand.N(gap/2)
}
