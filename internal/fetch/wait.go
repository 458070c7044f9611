package fetch

import (
	"math"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// wait pauses while other reads load keys that rounds of this batch need, before these rounds look
// up the keys again. It polls: no message announces the end of another process's load.
func (b *batch) wait() {
	rounds := atStep(b.open, toWait)
	if len(rounds) == 0 {
		return
	}
	now := max(time.Since(b.fetcher.start), 1)
	pause := time.Duration(math.MaxInt64)
	for _, r := range rounds {
		if r.forFresh { // a fresh value may arrive before the soft deadline
			pause = min(pause, r.softDeadline-now,
				b.fetcher.Source.Pace.Pause(now-(r.softDeadline-b.fetcher.SoftTimeout)))
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
		if waited > 2*b.fetcher.LoadTimeout+b.fetcher.cache.QueueTimeout {
			// the other load may have waited in a queue first
			r.Err, r.step = fault.LoadTimeout, ended
			continue
		}
		pause = min(pause, b.fetcher.Source.Pace.Pause(waited))
	}
	if others := len(atStep(b.open, toLookUp)) + len(atStep(b.open, toLease)); others > 0 || pause == math.MaxInt64 {
		pause = 0 // other rounds can continue immediately
	}
	for _, r := range atStep(rounds, toWait) {
		r.step = toLookUp
	}
	_ = retry.Sleep(b.ctx, pause) // the caller checks ctx
}
