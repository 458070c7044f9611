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
	rounds := atStep(b.open, toWait)
	if len(rounds) == 0 {
		return
	}
	now := max(time.Since(b.fetcher.start), 1)
	pause := time.Duration(math.MaxInt64)
	for _, r := range rounds {
		if r.forFresh { // for a fresh value, which there may be before its patience ends
			pause = min(pause, r.softDeadline-now, b.fetcher.Source.Pace.Pause(now-(r.softDeadline-b.fetcher.SoftTimeout)))
			continue
		}
		if r.waitingSince == 0 {
			r.waitingSince = now
			b.fetcher.Counters.Waits.Add(1)
			if b.fetcher.cache.Observed {
				_, r.onWaitEnd = b.fetcher.observe(b.ctx, OpWait, 1)
			}
		}
		waited := now - r.waitingSince
		if waited > 2*b.fetcher.LoadTimeout+b.fetcher.cache.QueueTimeout { // the load may have had to wait for its turn
			r.Err, r.step = fault.LoadTimeout, ended
			continue
		}
		pause = min(pause, b.fetcher.Source.Pace.Pause(waited))
	}
	if others := len(atStep(b.open, toLookUp)) + len(atStep(b.open, toLease)); others > 0 || pause == math.MaxInt64 {
		pause = 0 // there is something to look for at once
	}
	for _, r := range atStep(rounds, toWait) {
		r.step = toLookUp
	}
	Pause(b.ctx, pause)
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
