package fetch

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// A round that waits for the load of another process polls. If many processes wait for one load,
// their polls would be most of Redis' work. So a waiting process counts itself in the lease, and
// from a certain number on, the process that loads announces the end of its load. Then the others
// poll only in case that message is lost.

// shortLoad is the duration of a load up to which a process polls once before it counts itself.
const shortLoad = 10 * time.Millisecond

// A process that waits for the announced end of a load polls after a pause as long as the wait so
// far, but at least after twice the expected load and minAwaited, and at most after maxAwaited. It
// also polls within deadSpread of the end of the lease, in case its holder has died.
const (
	minAwaited = 250 * time.Millisecond
	maxAwaited = time.Second
	deadSpread = 100 * time.Millisecond
)

// wait pauses while other reads load keys that rounds of this batch need, before these rounds look
// up the keys again.
func (b *batch) wait() {
	b.count()
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
		pause = min(pause, b.fetcher.pause(r, now))
	}
	if others := len(atStep(b.open, toLookUp)) + len(atStep(b.open, toLease)); others > 0 || pause == math.MaxInt64 {
		pause = 0 // other rounds can continue immediately
	}
	woken := b.sleep(atStep(rounds, toWait), pause) // the caller checks ctx
	for _, r := range atStep(rounds, toWait) {
		if r.awaited && !woken && b.canCount(r) {
			r.counted, r.awaited = false, false // count looks up the key, and the rest of the lease's life
		} else {
			r.step = toLookUp
		}
	}
}

// waitFor notes the lease that a round waits for. state is that of its key, or nil for a refresh,
// which requests the lease again. now is on the loader's clock.
func (r *Round) waitFor(state *lease.State, now time.Duration) {
	token, awaited, ends := lease.Token{}, false, time.Duration(0)
	if state != nil && state.Kind == lease.Busy {
		token, awaited = state.Token, state.Awaited
		if state.Left > 0 {
			ends = now + state.Left
		}
	}
	r.counted = r.counted && token == r.lease
	r.lease, r.awaited, r.leaseEnds = token, awaited, ends
}

// pause returns the pause of a round before its next lookup.
func (f *Fetcher) pause(r *Round, now time.Duration) time.Duration {
	waited := now - r.waitingSince
	if !r.awaited {
		return f.Source.Pace.Pause(waited)
	}
	gap := min(max(waited, 2*f.Source.Pace.Mean(), minAwaited), maxAwaited)
	gap = gap*3/4 + rand.N(gap/2)
	if r.leaseEnds != 0 {
		gap = min(gap, max(r.leaseEnds-now, 0)+rand.N(deadSpread))
	}
	return gap
}

// canCount reports whether this process can be counted in the lease that a round waits for. It must
// receive the announcement of the lease's end.
func (b *batch) canCount(r *Round) bool {
	return !b.refresh && !r.forFresh && r.lease != (lease.Token{}) &&
		b.fetcher.Memory != nil && b.fetcher.cache.Bus.Receives(r.slotRange)
}

// count counts this process among those who wait for the ends of leases, and looks up the keys
// again in the same trip.
func (b *batch) count() {
	var rounds []*Round
	for _, r := range atStep(b.open, toWait) {
		if r.counted || r.awaited || !b.canCount(r) {
			continue
		}
		if mean := b.fetcher.Source.Pace.Mean(); r.waitingSince == 0 && mean != 0 && mean < shortLoad {
			continue
		}
		rounds = append(rounds, r)
	}
	if len(rounds) == 0 {
		return
	}
	attempts := b.attempts(rounds)
	b.lookedUp = b.fetcher.cache.Bus.Now()
	b.fetcher.cache.Store.Await(b.ctx, attempts, b.fetcher.cache.Bus.Channel())
	for i, r := range rounds {
		r.counted = true
		b.applyLookup(r, &attempts[i].State, attempts[i].Err)
	}
	b.fetcher.startDueRefreshes(rounds)
	b.complete(rounds)
}

// sleep waits for the pause, or until the load of one of rounds has ended, or ctx has ended. It
// reports whether a load has ended.
func (b *batch) sleep(rounds []*Round, pause time.Duration) bool {
	if pause <= 0 {
		return false
	}
	var woken <-chan struct{} // nil: never
	if b.fetcher.Memory != nil && b.fetcher.cache.Bus != nil {
		var stable []uint64
		for _, r := range rounds {
			if r.awaited {
				stable = append(stable, r.sharedHash)
			}
		}
		if len(stable) > 0 {
			wait := b.fetcher.cache.Bus.WaitForEnd(stable, b.lookedUp)
			defer wait.Close()
			woken = wait.Woken()
		}
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-woken:
		return true
	case <-b.ctx.Done():
	}
	return false
}

// noteTime records a time before the next lookup.
func (b *batch) noteTime() {
	if b.fetcher.cache.Bus != nil {
		b.lookedUp = b.fetcher.cache.Bus.Now()
	}
}

// announceEnds announces the ends of the leases of attempts that other processes wait for.
func (b *batch) announceEnds(rounds []*Round) {
	var stable []uint64
	for _, r := range rounds {
		if r.attempt != nil && r.attempt.Awaited {
			r.attempt.Awaited = false
			stable = append(stable, b.fetcher.Keys.Hash(r.text))
		}
	}
	if len(stable) == 0 {
		return
	}
	b.fetcher.background.Go(func() { // no caller waits for it
		b.fetcher.CountWrite(b.fetcher.cache.Bus.AnnounceEnds(b.fetcher.Life, slices.Clip(stable)))
	})
}
