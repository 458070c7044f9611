package source

import (
	"cmp"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Pace is about how long the loads of a loader take.
type Pace struct{ nanos atomic.Int64 }

// observe takes one load into account: an exponential moving average, which needs no exact sum, so
// that a lost update is no harm.
func (p *Pace) observe(took time.Duration) {
	old := p.nanos.Load()
	if old == 0 {
		old = int64(took)
	}
	p.nanos.Store(old + (int64(took)-old)/8)
}

// Mean is about how long they take; 0 if that is not known.
func (p *Pace) Mean() time.Duration { return time.Duration(p.nanos.Load()) }

// Pause is how long to wait before looking again for the result of another's load, after having
// waited for so long. A waiter does not know when that load began, so it looks from the start, but
// most often near the time that such a load takes: some five times before, some ten times around
// it, and if the load is longer, each tenth of what has been waited. With a quarter of jitter, so
// that waiters do not ask in step.
func (p *Pace) Pause(waited time.Duration) time.Duration {
	const unknown = 50 * time.Millisecond
	expected := time.Duration(cmp.Or(p.nanos.Load(), int64(unknown)))
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
