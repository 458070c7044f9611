package fetch

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/source"
)

// MaxCalls is the maximum number of concurrent calls of the load function by one flight.
const MaxCalls = 8

// load loads the rows of the leased keys and stores them in the place of the leases, which it
// renews during the load. Redis refuses a store if an invalidation has removed the lease. The
// callers asked before that, so the loaded row is not too old for them. But another read may have
// stored an older row since. If this one were returned, a later reader could see the row go back
// in time. So it is returned to no caller, and the round begins again with a lookup; see
// MaxRefusals for the exception.
func (b *batch) load() {
	rounds := atStep(b.open, toLoad)
	if len(rounds) == 0 {
		return
	}
	stop := b.renewLeases(rounds) // until the values are stored: long ones take a while
	defer stop()
	forkUnleased, loaded := b.forkWhileLoading()
	defer loaded()
	chunks := b.chunks(rounds)
	if len(chunks) == 1 {
		b.loadAndStore(rounds, forkUnleased)
		return
	}
	InParallel(chunks, b.fetcher.Calls, func(chunk []*Round, onWait func()) {
		b.loadAndStore(chunk, func() {
			onWait()
			forkUnleased()
		})
	})
}

// forkWhileLoading returns two functions. The function fork moves the rounds that have no lease to
// a separate batch. A load that begins to wait for other loads calls it, because those loads may
// themselves wait for one of these rounds. The caller calls the function loaded when the loads of
// the batch have ended; after that, fork does nothing. In a background refresh no caller waits, so
// there the rounds stay in the batch.
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

// chunks divides rounds among calls of the load function, so that each call reads either from the
// primary or from a replica. Otherwise a few keys on hold would send the whole batch to the
// primary, or would be read from a replica.
func (b *batch) chunks(rounds []*Round) [][]*Round {
	replica := rounds
	var primary []*Round
	onPrimary := func(r *Round) bool { return b.fetcher.primary(r) }
	if slices.ContainsFunc(rounds, onPrimary) {
		replica = slices.DeleteFunc(slices.Clone(rounds), onPrimary)
		primary = slices.DeleteFunc(slices.Clone(rounds), func(r *Round) bool { return !onPrimary(r) })
	}
	return slices.AppendSeq(slices.Collect(slices.Chunk(primary, b.fetcher.Chunk)),
		slices.Chunk(replica, b.fetcher.Chunk))
}

// InParallel calls f for each chunk, up to limit at a time. A call of f that has called onWait,
// because it waits for other loads, does not count.
func InParallel[C any](chunks []C, limit int, f func(chunk C, onWait func())) {
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

// loadAndStore loads the rows of one call of the load function, stores them and completes their
// rounds. The load calls onWait when it begins to wait for other loads.
func (b *batch) loadAndStore(all []*Round, onWait func()) {
	returned := false
	defer func() {
		if !returned { // for example, a codec called runtime.Goexit
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
				continue // more ends the rounds
			}
		}
		var now []*Round
		now, rounds = split(rounds, entered)
		if now = b.loadable(now); len(now) > 0 {
			b.callAndStore(now, onWait)
		}
		b.complete(all)
	}
	returned = true
}

// split splits rounds into those at these places, which are in ascending order, and the others.
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

// loadable returns those rounds that must still be loaded. All rounds have entered the source. The
// rounds that are not returned have left it. A round without a lease ends here if its key failed to
// load a moment ago, or if another round has loaded it. After a recent failure Refresh loads
// nevertheless, and forgets the failure; a background refresh does neither.
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

// callAndStore loads rounds that have entered the source, under the loader's lock if there is one,
// and stores their rows. The load calls onWait when it begins to wait for other loads.
func (b *batch) callAndStore(rounds []*Round, onWait func()) {
	if b.fetcher.Locker == nil {
		rows := b.loadAll(rounds, onWait)
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
		b.store(rounds, source.NotAttempted(len(rounds),
			fmt.Errorf("%w: acquiring the lock: %w", fault.Unavailable, err)))
	case b.stillToLoad(rounds):
		left = true
		rows := b.loadAll(rounds, onWait)
		b.store(rounds, rows)
	}
}

// loadAll loads the rows of rounds. If Redis could not be asked, the callers that have gathered
// for the next round join this one, because they would wait for Redis just as long. That is safe:
// the row is read after those callers asked, and none of them gets anything that Redis returned
// earlier.
//
// They do not join if the key is on hold, or with Bypass, because then the round has not waited for
// Redis. Nor do they join if there is no Redis, because the round knows only of holds from before
// it began (see onHold).
func (b *batch) loadAll(rounds []*Round, onWait func()) []source.Row {
	takeIn := func() {
		if b.flight == nil || b.fetcher.cache.Store == nil {
			return
		}
		for _, r := range rounds {
			if r.withoutLease && !r.notCached && !r.bypass {
				b.flight.TakeIn(r)
			}
		}
	}
	for _, r := range rounds {
		r.LoadTried = true
	}
	call := source.Call{Begins: takeIn, Waiting: onWait, Background: b.background}
	return b.fetcher.Source.LoadEntered(b.fetcher.withPrimary(b.ctx, rounds), Texts(rounds), b.fetcher.Query(rounds),
		call)
}

// PreferPrimary is cacheaside.PreferPrimary.
func PreferPrimary(ctx context.Context) bool {
	primary, _ := ctx.Value(primaryKey{}).(bool)
	return primary
}

type primaryKey struct{}

// withPrimary returns the context of a load for rounds. Either all of them load from the primary,
// or none does. The caller's context may be the context of another load. The value that it has for
// PreferPrimary does not apply to this load, so withPrimary replaces it.
func (f *Fetcher) withPrimary(ctx context.Context, rounds []*Round) context.Context {
	primary := f.primary(rounds[0])
	if !primary && !PreferPrimary(ctx) {
		return ctx
	}
	return WithPrimary(ctx, primary)
}

// WithPrimary returns ctx with the value that PreferPrimary reports.
func WithPrimary(ctx context.Context, primary bool) context.Context {
	return context.WithValue(ctx, primaryKey{}, primary)
}

// primary reports whether a round should load from the primary. The result does not change while
// the round is at toLoad.
//
// A read that loads under a lease need not load from the primary, even if it is Fresh. A lease is
// granted only if nothing was invalidated within ReplicaLag.
func (f *Fetcher) primary(r *Round) bool {
	switch {
	case r.notCached:
		return true
	case !f.cache.MayHold:
		return false
	case r.needsPrimary, r.refusals > 0:
		return true
	default: // without Redis, this process knows which keys are on hold
		return r.withoutLease && f.cache.Store != nil
	}
}
