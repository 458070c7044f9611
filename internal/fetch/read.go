package fetch

import (
	"context"
	"errors"
	"slices"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// ReadInline looks up rounds that have only one caller, on the caller's goroutine. A hit needs no
// other goroutine, unless the loader's generation must be confirmed first. Rounds that have not
// ended when it returns must be passed to Read, in a flight.
func (f *Fetcher) ReadInline(ctx context.Context, mode Mode, rounds []*Round) {
	mode.applyTo(rounds)
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
	if asked := atStep(rounds, toLookUp); len(asked) > 0 && !f.leaseFirst(asked) {
		f.cache.Store.First(ctx, &f.sizes, names(asked), func(i int, state *lease.State, err error) {
			if err == nil || ctx.Err() == nil {
				f.applyLookup(asked[i], state, err)
			}
		})
		f.misses.observe(len(asked), len(atStep(asked, toLease)))
		f.startDueRefreshes(asked)
	}
	if ctx.Err() != nil { // no caller waits for the other rounds
		for _, r := range rounds {
			if r.step == toLookUp || r.step == toTakeFirst {
				f.Counters.Abandoned.Add(1)
				r.Err, r.step = ctx.Err(), ended
			}
		}
	}
}

// Read runs one flight of reads. All callers asked before it began.
func (f *Fetcher) Read(ctx context.Context, mode Mode, rounds []*Round, flight Flight) {
	mode.applyTo(rounds)
	if f.filter.Filter != nil {
		f.checkFilter(ctx, rounds)
	}
	f.runAll(ctx, rounds, flight, false)
}

// maxRounds is the maximum number of rounds of a batch. Each step visits all rounds of its batch,
// and a batch takes many steps, because each loads a limited number of rows.
const maxRounds = 4096

// runAll runs rounds in batches of limited size, one after the other.
func (f *Fetcher) runAll(ctx context.Context, rounds []*Round, flight Flight, refresh bool) {
	for part := range slices.Chunk(rounds, maxRounds) {
		b := f.batchOf(ctx, part, flight, refresh)
		if !refresh {
			f.lookUpInMemory(b.open)
		}
		b.run()
	}
}

// Refresh runs one flight of refreshes, which load the rows regardless of what is cached.
func (f *Fetcher) Refresh(ctx context.Context, rounds []*Round, flight Flight) {
	f.runAll(ctx, rounds, flight, true)
}

func (f *Fetcher) batchOf(ctx context.Context, rounds []*Round, flight Flight, refresh bool) *batch {
	for _, r := range rounds {
		f.begin(r)
		r.needsPrimary = r.needsPrimary || refresh
	}
	return &batch{fetcher: f, ctx: ctx, flight: flight, rounds: rounds, open: slices.Clone(rounds), refresh: refresh}
}

// run continues all rounds until they have completed. Each step is one trip to Redis for all keys
// that are at this step.
func (b *batch) run() {
	defer b.forks.Wait()
	defer b.releaseLeases()
	for b.more() {
		b.noteTime()
		b.confirmGenerations() // determines which entries are valid
		if b.refresh {
			b.readStamps() // of the entries to replace, in a background refresh
			b.claim()      // requests leases, regardless of what the keys hold
		} else {
			b.lookUp()     // reads what the keys hold
			b.takeFirst()  // the same together with takeLeases, where a trip takes long
			b.fetchRest()  // of long entries
			b.takeLeases() // of keys that hold nothing; Redis grants a lease only if that is still so
		}
		b.forkWaiting() // so that rounds to load do not wait for other loads
		b.load()        // loads the rows of leased keys and stores them, before any wait
		b.wait()        // waits for other loads, before the next lookup
	}
}

// more completes the rounds that have ended, and reports whether any are left. If the callers
// have left, or the cache is closed, it ends all rounds.
func (b *batch) more() bool {
	if b.ctx.Err() != nil {
		b.releaseLeases() // before the callers get the error
		for _, r := range b.open {
			if r.step < ended {
				r.Err, r.step = b.fetcher.Stopped(b.ctx), ended
			}
		}
	}
	if b.background && slices.ContainsFunc(b.rounds, func(r *Round) bool { return r.notAttempted }) {
		for _, r := range b.open {
			if r.step < ended { // the limits would refuse it, too
				r.notAttempted, r.step = true, ended
			}
		}
	}
	b.complete(b.open)
	b.open = slices.DeleteFunc(b.open, func(r *Round) bool { return r.step == completed })
	return len(b.open) > 0
}

// forkWaiting forks the rounds that wait for other loads, if other rounds are to be loaded. So
// neither delays the other.
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

// Stopped counts a round that was abandoned by its callers, and returns the round's error.
func (f *Fetcher) Stopped(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		f.Counters.Abandoned.Add(1)
	}
	return causeOfEnd(ctx)
}

// causeOfEnd returns the error that callers get when a round's context has ended.
func causeOfEnd(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), flight.ErrAbandoned) {
		return ctx.Err()
	}
	return context.Cause(ctx)
}
