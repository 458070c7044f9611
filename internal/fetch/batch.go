package fetch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// batch is the rounds of one flight: one key for a Get, many for a GetMany. Each method is a step
// for those that are at it, in one trip to Redis for all.
type batch struct {
	fetcher    *Fetcher
	ctx        context.Context
	flight     Flight   // nil: nobody waits
	rounds     []*Round // that it is to bring to their end
	open       []*Round // those of them that have not completed
	refresh    bool
	background bool // and nobody waits for it: of entries that were read
	released   bool
	parts      sync.WaitGroup // batches that were forked off
}

// complete gives out those rounds that are over.
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

// fork moves rounds to a batch of their own, which runs at the same time. The run of b returns
// after the run of that batch.
func (b *batch) fork(rounds []*Round) {
	part := &batch{fetcher: b.fetcher, ctx: b.ctx, flight: b.flight, rounds: rounds, open: slices.Clone(rounds), refresh: b.refresh}
	moved := make(map[*Round]bool, len(rounds))
	for _, r := range rounds {
		moved[r] = true
	}
	isMoved := func(r *Round) bool { return moved[r] }
	b.rounds = slices.DeleteFunc(slices.Clone(b.rounds), isMoved)
	b.open = slices.DeleteFunc(slices.Clone(b.open), isMoved)
	b.parts.Go(part.run)
}

// end gives up what the rounds still hold in Redis, on whatever way they ended.
func (b *batch) releaseLeases() {
	if b.released {
		return
	}
	b.released = true
	var owned, later []*lease.Attempt
	for _, r := range b.rounds {
		switch a := r.attempt; {
		case a == nil, !a.Owns() && !a.Owes(): // a hit, or a load that has ended as it should
		case !a.Owns(), r.storeFailed, b.fetcher.cache.Conn.Down(int(r.slotRange)) != nil: // a lease that was asked for in vain may yet be given; or Redis does not answer: nobody waits
			later = append(later, a)
		default:
			owned = append(owned, a)
		}
	}
	b.release(owned)
	if len(later) > 0 {
		b.fetcher.background.Go(func() { b.release(later) })
	}
}

// attempts are those of rounds that ask Redis.
func (b *batch) attempts(rounds []*Round) []*lease.Attempt {
	as := make([]*lease.Attempt, len(rounds))
	for i, r := range rounds {
		as[i] = b.fetcher.attempt(r)
		if b.background {
			as[i].For(r.stamp)
		}
		as[i].Young = b.fetcher.recentGeneration(r)
	}
	return as
}

func (f *Fetcher) attempt(r *Round) *lease.Attempt {
	if r.attempt == nil {
		a := lease.NewAttempt(r.name, f.cache.LeaseTTL)
		r.attempt = &a
	}
	return r.attempt
}

// young is the loader's generation in a round, where that may have begun within ReplicaLag: no
// earlier than this process has learned of it. By its own clock Redis says whether it has, for a
// process that has just started learns of old ones. This bound is for the case that the generation
// is ahead of that clock.
func (f *Fetcher) recentGeneration(r *Round) uint64 {
	if r.generation == nil || time.Since(r.generation.Since) >= f.cache.ReplicaLag {
		return 0
	}
	return r.generation.Number
}

func (b *batch) release(as []*lease.Attempt) {
	if len(as) > 0 {
		b.fetcher.cache.Store.Release(context.WithoutCancel(b.ctx), as)
		b.fetcher.countWrites(as)
	}
}

// again has a round look at Redis for the first time, or once more from the start.
func (f *Fetcher) restart(r *Round) {
	now, known := f.cache.Bus.ConfirmedAt(r.slotRange) // first: a later generation may be confirmed now than was taken before
	r.takenAt = now
	f.takeSnapshot(r)
	r.step = toLookUp
	if r.generation == nil || r.outdated || !known {
		r.step = toConfirm
	}
}

// takeSnapshot is called before a round's first look at Redis, and when it starts again: the entry
// that it stores, and the item that it puts into memory, count from no later time than that.
func (f *Fetcher) takeSnapshot(r *Round) {
	r.generation = f.Generations.Of(r.slotRange)
	if f.Memory != nil {
		r.version = f.Memory.Version(r.slotRange, r.sharedHash)
	}
}

// payload returns the payload of an entry.
func payload(e *lease.Entry) codec.Payload {
	return codec.Payload{Codec: codec.ID(e.Codec), Compressed: e.Compressed, Bytes: e.Payload}
}
