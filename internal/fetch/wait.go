package fetch

import (
	"context"
	"math"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
)

// wait lets some time pass while other loads are under way, before looking again for what they have
// stored. Nothing wakes it: a load of another process that ends is seen by the next look only.
func (b *batch) wait() {
	rounds := at(b.open, toWait)
	if len(rounds) == 0 {
		return
	}
	now := max(time.Since(b.l.start), 1)
	gap := time.Duration(math.MaxInt64)
	for _, r := range rounds {
		if r.forFresh { // for a fresh value, which there may be before its patience ends
			gap = min(gap, r.softDeadline-now, b.l.Source.Pace.Pause(now-(r.softDeadline-b.l.SoftTimeout)))
			continue
		}
		if r.waited == 0 {
			r.waited = now
			b.l.Counters.Waits.Add(1)
			if b.l.cache.Observed {
				_, r.waiting = b.l.observe(b.ctx, OpWait, 1)
			}
		}
		waited := now - r.waited
		if waited > 2*b.l.LoadTimeout+b.l.cache.QueueTimeout { // the load may have had to wait for its turn
			r.Err, r.step = fault.LoadTimeout, over
			continue
		}
		gap = min(gap, b.l.Source.Pace.Pause(waited))
	}
	if others := len(at(b.open, toLook)) + len(at(b.open, toTake)); others > 0 || gap == math.MaxInt64 {
		gap = 0 // there is something to look for at once
	}
	for _, r := range at(rounds, toWait) {
		r.step = toLook
	}
	Pause(b.ctx, gap)
}

// Pause lets d pass, or less if ctx ends.
func Pause(ctx context.Context, d time.Duration) {
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
