package fetch

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// batch is the rounds of one flight: one key for a Get, many for a GetMany. Each method is a step
// for those that are at it, in one trip to Redis for all.
type batch struct {
	l          *Fetcher
	ctx        context.Context
	flight     Flight   // nil: nobody waits
	rounds     []*Round // that it is to bring to their end
	open       []*Round // those of them that have not completed
	refresh    bool
	background bool // and nobody waits for it: of entries that were read
	ended      bool
	parts      sync.WaitGroup // batches that went on by themselves
}

func (l *Fetcher) batchOf(ctx context.Context, rounds []*Round, f Flight, refresh bool) *batch {
	for _, r := range rounds {
		l.begin(r)
		r.needsPrimary = r.needsPrimary || refresh
	}
	return &batch{l: l, ctx: ctx, flight: f, rounds: rounds, open: slices.Clone(rounds), refresh: refresh}
}

// run brings all rounds to their end. Each step is one trip to Redis for all keys that are at it.
func (b *batch) run() {
	defer b.parts.Wait()
	defer b.end()
	for b.more() {
		b.learn() // which entries count, if that is in doubt
		if b.refresh {
			b.peek()  // for a renewal: at what is to be renewed
			b.claim() // the leases, whatever the keys hold
		} else {
			b.look()      // what do the keys hold?
			b.fetchRest() // of long entries the rest
			b.take()      // the leases of those that hold nothing; that they still do is the second check
		}
		b.part() // nobody's load is waited for by those who do not need it
		b.load() // the rows of the leased keys, and stores them, before waiting for anybody
		b.wait() // for the loads of others, and looks again
	}
}

// more gives out what is over, and tells whether anything is left to do. When the callers have
// left, or the cache is closed, all is over.
func (b *batch) more() bool {
	if b.ctx.Err() != nil {
		b.end() // before anybody is told
		for _, r := range b.open {
			if r.step < over {
				r.Err, r.step = b.l.Stopped(b.ctx), over
			}
		}
	}
	if b.background && slices.ContainsFunc(b.rounds, func(r *Round) bool { return r.notAttempted }) {
		for _, r := range b.open {
			if r.step < over { // it would be refused, too
				r.notAttempted, r.step = true, over
			}
		}
	}
	b.complete(b.open)
	b.open = slices.DeleteFunc(b.open, func(r *Round) bool { return r.step == completed })
	return len(b.open) > 0
}

// complete gives out those rounds that are over.
func (b *batch) complete(rounds []*Round) {
	done := at(rounds, over)
	for _, r := range done {
		r.step = completed
		r.waits(r.Err)
	}
	if b.l.filter.Filter != nil {
		b.l.countFilter(done)
	}
	if b.flight != nil {
		b.flight.Complete(done)
	}
}

// part lets the rounds that wait for others' loads go on by themselves, if there are some that
// load: neither delays the other.
func (b *batch) part() {
	loading, waiting := at(b.open, toLoad), at(b.open, toWait)
	if len(loading) == 0 || len(waiting) == 0 {
		return
	}
	for _, r := range waiting {
		r.step = toLook
	}
	b.leave(waiting)
}

// leave lets rounds go on by themselves.
func (b *batch) leave(rounds []*Round) {
	part := &batch{l: b.l, ctx: b.ctx, flight: b.flight, rounds: rounds, open: slices.Clone(rounds), refresh: b.refresh}
	leave := make(map[*Round]bool, len(rounds))
	for _, r := range rounds {
		leave[r] = true
	}
	goesOn := func(r *Round) bool { return leave[r] }
	b.rounds = slices.DeleteFunc(slices.Clone(b.rounds), goesOn)
	b.open = slices.DeleteFunc(slices.Clone(b.open), goesOn)
	b.parts.Go(part.run)
}

// end gives up what the rounds still hold in Redis, on whatever way they ended.
func (b *batch) end() {
	if b.ended {
		return
	}
	b.ended = true
	var owned, later []*lease.Attempt
	for _, r := range b.rounds {
		switch a := r.attempt; {
		case a == nil, !a.Owns() && !a.Owes(): // a hit, or a load that has ended as it should
		case !a.Owns(), r.lost, b.l.cache.Conn.Down(int(r.slotRange)) != nil: // a lease that was asked for in vain may yet be given; or Redis does not answer: nobody waits
			later = append(later, a)
		default:
			owned = append(owned, a)
		}
	}
	b.release(owned)
	if len(later) > 0 {
		b.l.background.Go(func() { b.release(later) })
	}
}

func (b *batch) release(as []*lease.Attempt) {
	if len(as) > 0 {
		b.l.cache.Store.Release(context.WithoutCancel(b.ctx), as)
		b.l.countWrites(as)
	}
}

// Stopped counts rounds that their callers have left, one by one.
func (l *Fetcher) Stopped(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		l.Counters.Abandoned.Add(1)
	}
	return ended(ctx)
}

// count makes an error of Redis seen that no caller is told of.
func (l *Fetcher) count(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		l.Counters.RedisErrors.Add(1)
	}
}

// CountWrite does so for what was to be stored, renewed or given up.
func (l *Fetcher) CountWrite(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		l.Counters.RedisErrors.Add(1)
		l.Counters.WriteErrors.Add(1)
	}
}

func (l *Fetcher) countWrites(as []*lease.Attempt) {
	for _, a := range as {
		l.CountWrite(a.Err)
	}
}

// ended tells why a round's context has ended, in words for callers.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		return ctx.Err()
	}
	return context.Cause(ctx)
}
