package fetch

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/source"
)

// MaxCalls is how many calls of the load function one flight makes at once.
const MaxCalls = 8

// load loads the rows of the leased keys, and stores them in the place of the leases, which are
// renewed meanwhile. A store is refused if an invalidation has removed the lease. Then the row may
// be older than a write that its callers must see, so it is given to nobody, and its round starts
// again: but see MaxRefusals.
func (b *batch) load() {
	rounds := atStep(b.open, toLoad)
	if len(rounds) == 0 {
		return
	}
	stop := b.renewLeases(rounds)
	defer stop()
	forkUnleased, loaded := b.forkWhileLoading()
	defer loaded()
	chunks := b.chunks(rounds)
	if len(chunks) == 1 {
		b.loadAndStore(rounds, stop, forkUnleased)
		return
	}
	InParallel(chunks, b.fetcher.Calls, func(chunk []*Round, waiting func()) {
		b.loadAndStore(chunk, func() {}, func() {
			waiting()
			forkUnleased()
		})
	})
}

// restWhileLoading returns a function that forks off the rounds that have no lease yet, and a
// function that must be called when the loads of the batch have ended; from then on the first does
// nothing. A load calls the first when it begins to wait for other loads. It may be waiting for one
// of these rounds, or for another batch that waits for one. In the background there is no caller
// that could wait, so these rounds stay in the batch.
func (b *batch) forkWhileLoading() (fork, loaded func()) {
	unleased := slices.Concat(atStep(b.open, toLookUp), atStep(b.open, toLease))
	var mu sync.Mutex
	disabled := b.background || len(unleased) == 0
	fork = func() {
		mu.Lock()
		defer mu.Unlock()
		if !disabled {
			disabled = true
			b.fork(unleased)
		}
	}
	return fork, func() {
		mu.Lock()
		defer mu.Unlock()
		disabled = true
	}
}

// chunks divides rounds among calls of the load function, so that each call reads from one
// database: neither do a few keys on hold send all others of a batch to the primary, nor are they
// read from a replica.
func (b *batch) chunks(rounds []*Round) [][]*Round {
	replica := rounds
	var primary []*Round
	onPrimary := func(r *Round) bool { return b.fetcher.primary(r) }
	if slices.ContainsFunc(rounds, onPrimary) {
		replica = slices.DeleteFunc(slices.Clone(rounds), onPrimary)
		primary = slices.DeleteFunc(slices.Clone(rounds), func(r *Round) bool { return !onPrimary(r) })
	}
	return slices.AppendSeq(slices.Collect(slices.Chunk(primary, b.fetcher.Chunk)), slices.Chunk(replica, b.fetcher.Chunk))
}

// AtOnce calls f for each chunk, so many at once, besides those that have begun to wait for other
// loads, which they say by waiting.
func InParallel[C any](chunks []C, limit int, f func(chunk C, waiting func())) {
	slots := make(chan struct{}, limit)
	var calls sync.WaitGroup
	for _, chunk := range chunks {
		slots <- struct{}{}
		leave := sync.OnceFunc(func() { <-slots })
		calls.Go(func() {
			defer leave()
			f(chunk, leave)
		})
	}
	calls.Wait()
}

// loadAndStore loads the rows of one call, stores them, and gives them out. waiting is called when
// the load begins to wait for others.
func (b *batch) loadAndStore(all []*Round, stop, waiting func()) {
	returned := false
	defer func() {
		if !returned { // a codec called runtime.Goexit, say
			b.failAll(atStep(all, toLoad), b.fetcher.cache.Caught(recover()))
			b.complete(all)
		}
	}()
	for rounds := all; len(rounds) > 0 && b.ctx.Err() == nil; {
		entered, busy := b.fetcher.Source.Enter(Texts(rounds), func(i int) bool { return !rounds[i].withoutLease })
		if len(entered) == 0 {
			select {
			case <-busy:
				continue
			case <-b.ctx.Done():
				continue // more ends them
			}
		}
		var now []*Round
		now, rounds = split(rounds, entered)
		if now = b.loadable(now); len(now) > 0 {
			last := len(rounds) == 0
			b.callAndStore(now, func() {
				if last {
					stop()
				}
			}, waiting)
		}
		b.complete(all)
	}
	returned = true
}

// split parts rounds into those at these places, which are in order, and the others.
func split(rounds []*Round, places []int) (selected, others []*Round) {
	if len(places) == len(rounds) {
		return rounds, nil
	}
	for i, r := range rounds {
		if len(places) > 0 && places[0] == i {
			selected, places = append(selected, r), places[1:]
		} else {
			others = append(others, r)
		}
	}
	return selected, others
}

// mayLoad ends those rounds that would load without a lease a key that failed to load a moment ago,
// or that another has loaded meanwhile. All have entered the source; it answers those that are
// still in. A refresh is asked for in spite of a failure, and ends it; a reload in the background
// is not.
func (b *batch) loadable(rounds []*Round) []*Round {
	failures := b.fetcher.Source.Failures
	var leaving []string
	for _, r := range rounds {
		r.failureEpoch = failures.Epoch(r.text)
		switch {
		case b.refresh && !b.background:
			failures.Forget(r.text)
		case r.withoutLease && !r.bypass && failures.Local(r.text):
			b.fetcher.Counters.FailedByMark.Add(1)
			r.Err, r.step = failures.Err(r.text), ended
			leaving = append(leaving, r.text)
		case r.withoutLease && !b.refresh && b.fetcher.fillFromKept(r):
			r.step = ended
			leaving = append(leaving, r.text)
		}
	}
	if len(leaving) == 0 {
		return rounds
	}
	b.fetcher.Source.Leave(leaving)
	return atStep(rounds, toLoad)
}

// callAndStore loads the rows of rounds that have entered the source, under the loader's lock
// if it has one, and stores them. loaded is called in between, waiting when the load begins to wait
// for others.
func (b *batch) callAndStore(rounds []*Round, loaded, waiting func()) {
	if b.fetcher.Locker == nil {
		rows := b.loadAll(rounds, waiting)
		loaded()
		b.store(rounds, rows)
		return
	}
	left := false
	defer func() {
		if !left {
			b.fetcher.Source.Leave(Texts(rounds))
		}
	}()
	unlock, err := b.lock(rounds[0])
	if unlock != nil {
		defer b.unlock(unlock)
	}
	switch {
	case b.ctx.Err() != nil: // the callers have left
	case err != nil && b.fetcher.MustLock:
		loaded()
		b.store(rounds, source.NotAttempted(len(rounds), fmt.Errorf("%w: its lock: %w", fault.Unavailable, err)))
	case b.stillToLoad(rounds):
		left = true
		rows := b.loadAll(rounds, waiting)
		loaded()
		b.store(rounds, rows)
	}
}

// loadAll loads the rows of rounds. Where Redis could not be asked, the callers who have gathered
// meanwhile take part, since they would wait for Redis as long again: what is loaded is from after
// they asked, and they are given nothing that Redis has said before. Not for a key on hold, or with
// Bypass, where nobody has waited; nor without any Redis, where a round knows only of holds from
// before it began (see onHold).
func (b *batch) loadAll(rounds []*Round, waiting func()) []source.Row {
	takeIn := func() {
		if b.flight == nil || b.fetcher.cache.Store == nil {
			return
		}
		for _, r := range rounds {
			if r.withoutLease && !r.onHold && !r.bypass {
				b.flight.TakeIn(r)
			}
		}
	}
	how := source.Call{Begins: takeIn, Waiting: waiting, Background: b.background}
	rows := b.fetcher.Source.LoadEntered(b.fetcher.withPrimary(b.ctx, rounds), Texts(rounds), b.fetcher.Query(rounds), how)
	b.fetcher.Loaded(rounds, rows)
	return rows
}

// PreferPrimary is cacheaside.PreferPrimary.
func PreferPrimary(ctx context.Context) bool {
	primary, _ := ctx.Value(primaryKey{}).(bool)
	return primary
}

type primaryKey struct{}

// withPrimary returns the context of a load for rounds, which are all alike in this. The caller's
// context may be that of another load, which says nothing about this one, and which the flight
// loses when that caller leaves.
func (f *Fetcher) withPrimary(ctx context.Context, rounds []*Round) context.Context {
	primary := f.primary(rounds[0])
	if !primary && !PreferPrimary(ctx) {
		return ctx
	}
	return WithPrimary(ctx, primary)
}

// WithPrimary is ctx with what PreferPrimary says.
func WithPrimary(ctx context.Context, primary bool) context.Context {
	return context.WithValue(ctx, primaryKey{}, primary)
}

// primary tells whether a round should load from the primary. It does not change while the round is
// at toLoad.
//
// A read that loads under a lease need not, also if it is Fresh: nothing was invalidated for as
// long as the lag, or the lease would not have been given.
func (f *Fetcher) primary(r *Round) bool {
	switch {
	case r.onHold:
		return true
	case !f.cache.MayHold:
		return false
	case r.needsPrimary, r.refusals > 0:
		return true
	default: // without Redis, what is on hold is known
		return r.withoutLease && f.cache.Store != nil
	}
}
