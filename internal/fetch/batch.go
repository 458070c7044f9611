package fetch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// A batch is the rounds of one flight: one key for a Get, many for a GetMany. Each method is a
// step of a read. It acts on all rounds that are at this step, in one trip to Redis.
type batch struct {
	fetcher    *Fetcher
	ctx        context.Context
	flight     Flight   // nil if no caller waits
	rounds     []*Round // all rounds of the batch
	open       []*Round // the rounds that have not completed
	refresh    bool
	background bool // a refresh of entries that callers have read, for which no caller waits
	released   bool
	lookedUp   time.Duration  // a time before the last lookup, on the bus's clock
	forks      sync.WaitGroup // the batches that fork has started
}

// complete completes those rounds that have ended: their callers get the results.
func (b *batch) complete(rounds []*Round) {
	finished := atStep(rounds, ended)
	for _, r := range finished {
		r.step = completed
		r.endWait(r.Err)
	}
	if b.fetcher.filter.Filter != nil {
		b.fetcher.countFilter(finished)
	}
	if b.flight != nil {
		b.flight.Complete(finished)
	}
}

// fork moves rounds to a separate batch, which runs concurrently. b.run does not return before
// that batch has ended.
func (b *batch) fork(rounds []*Round) {
	forked := &batch{fetcher: b.fetcher, ctx: b.ctx, flight: b.flight, rounds: rounds, open: slices.Clone(rounds),
		refresh: b.refresh}
	moved := make(map[*Round]bool, len(rounds))
	for _, r := range rounds {
		moved[r] = true
	}
	isMoved := func(r *Round) bool { return moved[r] }
	b.rounds = slices.DeleteFunc(slices.Clone(b.rounds), isMoved)
	b.open = slices.DeleteFunc(slices.Clone(b.open), isMoved)
	b.forks.Go(forked.run)
}

// releaseLeases releases the leases that the rounds still own in Redis, regardless of how the
// rounds ended. Only its first call does anything.
func (b *batch) releaseLeases() {
	if b.released {
		return
	}
	b.released = true
	var owned, later []*lease.Attempt
	for _, r := range b.rounds {
		switch a := r.attempt; {
		case a == nil, !a.Owns() && !a.Owes(): // a hit, or a load whose lease has ended as usual
		case !a.Owns(), r.storeFailed, b.fetcher.cache.Conn.Down(int(r.slotRange)) != nil:
			// An unsuccessful request may still be granted a lease. And if Redis does not
			// respond, no caller should wait for it.
			later = append(later, a)
		default:
			owned = append(owned, a)
		}
	}
	b.release(owned)
	b.announceEnds(b.rounds)
	if len(later) > 0 {
		b.fetcher.background.Go(func() { b.release(later) })
	}
}

// attempts returns the attempts of rounds, prepared for a request to Redis.
func (b *batch) attempts(rounds []*Round) []*lease.Attempt {
	attempts := make([]*lease.Attempt, len(rounds))
	var fresh []lease.Attempt // of the rounds that have no attempt
	for i, r := range rounds {
		if r.attempt == nil {
			if len(fresh) == cap(fresh) {
				fresh = make([]lease.Attempt, 0, len(rounds)-i)
			}
			fresh = append(fresh, lease.NewAttempt(r.name, b.fetcher.cache.LeaseTTL))
			r.attempt = &fresh[len(fresh)-1]
		}
		attempts[i] = r.attempt
		if b.background {
			attempts[i].For(r.stamp)
		}
		attempts[i].Young = b.fetcher.recentGeneration(r)
	}
	return attempts
}

func (f *Fetcher) attempt(r *Round) *lease.Attempt {
	if r.attempt == nil {
		a := lease.NewAttempt(r.name, f.cache.LeaseTTL)
		r.attempt = &a
	}
	return r.attempt
}

func (b *batch) release(attempts []*lease.Attempt) {
	if len(attempts) > 0 {
		b.fetcher.cache.Store.Release(context.WithoutCancel(b.ctx), attempts)
		b.fetcher.countWrites(attempts)
	}
}
