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
func (l *Fetcher) First(ctx context.Context, how How, rounds []*Round) {
	how.of(rounds)
	if l.filter.Filter == nil {
		l.first(ctx, rounds)
		return
	}
	if l.checkFilterNow(rounds) {
		l.first(ctx, rounds)
	}
	l.countFilter(at(rounds, over))
}

func (l *Fetcher) first(ctx context.Context, rounds []*Round) {
	for _, r := range rounds {
		l.begin(r)
	}
	l.lookInside(rounds)
	l.skipRedis(rounds, toLook)
	l.skipRedis(rounds, toLearn)
	if asked := at(rounds, toLook); len(asked) > 0 {
		l.cache.Store.First(ctx, &l.sizes, names(asked), func(i int, state *lease.State, err error) {
			if err == nil || ctx.Err() == nil {
				l.settle(asked[i], state, err)
			}
		})
		l.refreshDue(asked)
	}
	if ctx.Err() != nil { // nobody waits for the rest
		for _, r := range at(rounds, toLook) {
			l.Counters.Abandoned.Add(1)
			r.Err, r.step = ctx.Err(), over
		}
	}
}

// Read is one flight of reads: all their callers asked before it began.
func (l *Fetcher) Read(ctx context.Context, how How, rounds []*Round, f Flight) {
	how.of(rounds)
	if l.filter.Filter != nil {
		l.checkFilter(ctx, rounds)
	}
	b := l.batchOf(ctx, rounds, f, false)
	l.lookInside(b.open)
	b.run()
}

// Refresh is one flight of refreshes, which load whatever is cached.
func (l *Fetcher) Refresh(ctx context.Context, rounds []*Round, f Flight) {
	l.batchOf(ctx, rounds, f, true).run()
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
		b.forkWaiting() // so that rounds to load do not wait for other loads
		b.load()        // the rows of the leased keys, and stores them, before waiting for anybody
		b.wait()        // for the loads of others, and looks again
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

// forkWaiting forks off the rounds that wait for other loads, if there are rounds to load: neither
// then delays the other.
func (b *batch) forkWaiting() {
	loading, waiting := at(b.open, toLoad), at(b.open, toWait)
	if len(loading) == 0 || len(waiting) == 0 {
		return
	}
	for _, r := range waiting {
		r.step = toLook
	}
	b.fork(waiting)
}

// Stopped counts rounds that their callers have left, one by one.
func (l *Fetcher) Stopped(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		l.Counters.Abandoned.Add(1)
	}
	return ended(ctx)
}

// ended tells why a round's context has ended, in words for callers.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		return ctx.Err()
	}
	return context.Cause(ctx)
}
