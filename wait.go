package cacheaside

import (
	"context"
	"math"
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
			gap = min(gap, s.patience-now, b.l.source.Pace.Pause(now-(s.patience-b.l.options.SoftTimeout)))
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
		gap = min(gap, b.l.source.Pace.Pause(waited))
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
