package fetch

import (
	"context"
	"errors"
	"slices"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// First is the first look at Redis of a caller that shares its rounds with nobody, on its own
// goroutine: hits need no other, unless the loader's generation is in doubt. Rounds that are not
// over afterwards go on in Read, in a flight.
func (f *Fetcher) ReadInline(ctx context.Context, how How, rounds []*Round) {
	how.applyTo(rounds)
	if f.filter.Filter == nil {
		f.lookUpInline(ctx, rounds)
		return
	}
	if f.checkFilterInline(rounds) {
		f.lookUpInline(ctx, rounds)
	}
	f.countFilter(atStep(rounds, ended))
}

func (f *Fetcher) lookUpInline(ctx context.Context, rounds []*Round) {
	for _, r := range rounds {
		f.begin(r)
	}
	f.lookUpInMemory(rounds)
	f.skipRedis(rounds, toLookUp)
	f.skipRedis(rounds, toConfirm)
	if asked := atStep(rounds, toLookUp); len(asked) > 0 {
		f.cache.Store.First(ctx, &f.sizes, names(asked), func(i int, state *lease.State, err error) {
			if err == nil || ctx.Err() == nil {
				f.applyLookup(asked[i], state, err)
			}
		})
		f.startDueRefreshes(asked)
	}
	if ctx.Err() != nil { // nobody waits for the rest
		for _, r := range atStep(rounds, toLookUp) {
			f.Counters.Abandoned.Add(1)
			r.Err, r.step = ctx.Err(), ended
		}
	}
}

// Read is one flight of reads: all their callers asked before it began.
func (f *Fetcher) Read(ctx context.Context, how How, rounds []*Round, flight Flight) {
	how.applyTo(rounds)
	if f.filter.Filter != nil {
		f.checkFilter(ctx, rounds)
	}
	b := f.batchOf(ctx, rounds, flight, false)
	f.lookUpInMemory(b.open)
	b.run()
}

// Refresh is one flight of refreshes, which load whatever is cached.
func (f *Fetcher) Refresh(ctx context.Context, rounds []*Round, flight Flight) {
	f.batchOf(ctx, rounds, flight, true).run()
}

func (f *Fetcher) batchOf(ctx context.Context, rounds []*Round, flight Flight, refresh bool) *batch {
	for _, r := range rounds {
		f.begin(r)
		r.needsPrimary = r.needsPrimary || refresh
	}
	return &batch{fetcher: f, ctx: ctx, flight: flight, rounds: rounds, open: slices.Clone(rounds), refresh: refresh}
}

// run brings all rounds to their end. Each step is one trip to Redis for all keys that are at it.
func (b *batch) run() {
	defer b.parts.Wait()
	defer b.releaseLeases()
	for b.more() {
		b.confirmGenerations() // which entries count, if that is in doubt
		if b.refresh {
			b.readStamps() // for a renewal: at what is to be renewed
			b.claim()      // the leases, whatever the keys hold
		} else {
			b.lookUp()     // what do the keys hold?
			b.fetchRest()  // of long entries the rest
			b.takeLeases() // the leases of those that hold nothing; that they still do is the second check
		}
		b.forkWaiting() // so that rounds to load do not wait for other loads
		b.load()        // the rows of the leased keys, and stores them, before waiting for anybody
		b.wait()        // for the loads of others, and looks again
	}
}

// more gives out what is over, and tells whether anything is left to do. When the callers have
// left, or the cache is closed, all is over.
func (b *batch) more() bool {
	if b.ctx.Err() != nil {
		b.releaseLeases() // before anybody is told
		for _, r := range b.open {
			if r.step < ended {
				r.Err, r.step = b.fetcher.Stopped(b.ctx), ended
			}
		}
	}
	if b.background && slices.ContainsFunc(b.rounds, func(r *Round) bool { return r.notAttempted }) {
		for _, r := range b.open {
			if r.step < ended { // it would be refused, too
				r.notAttempted, r.step = true, ended
			}
		}
	}
	b.complete(b.open)
	b.open = slices.DeleteFunc(b.open, func(r *Round) bool { return r.step == completed })
	return len(b.open) > 0
}

// forkWaiting forks off the rounds that wait for other loads, if there are rounds to load: neither
// then delays the other.
func (b *batch) forkWaiting() {
	loading, waiting := atStep(b.open, toLoad), atStep(b.open, toWait)
	if len(loading) == 0 || len(waiting) == 0 {
		return
	}
	for _, r := range waiting {
		r.step = toLookUp
	}
	b.fork(waiting)
}

// Stopped counts rounds that their callers have left, one by one.
func (f *Fetcher) Stopped(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		f.Counters.Abandoned.Add(1)
	}
	return causeOfEnd(ctx)
}

// ended tells why a round's context has ended, in words for callers.
func causeOfEnd(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		return ctx.Err()
	}
	return context.Cause(ctx)
}
