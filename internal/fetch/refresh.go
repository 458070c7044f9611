package fetch

import (
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// startDueRefreshes starts the background refreshes that rounds have found to be due. If a
// refresh cannot start, callers that would wait for its value get the stale one. Call it before
// the rounds complete.
func (f *Fetcher) startDueRefreshes(rounds []*Round) {
	var starting []*Round
	var reloading []uint64 // hashes of keys that a flight of refreshes is reloading, or has just reloaded
	for _, r := range rounds {
		switch {
		case !r.due:
		case !f.skipsRefresh(r):
			starting = append(starting, &Round{
				Owner: r.Owner, Key: r.Key, step: toLookUp, identity: r.identity, refresh: r.refresh,
				snapshot: snapshot{generation: r.generation, takenAt: r.takenAt, version: r.version, known: r.known,
					allGroups: r.allGroups, needsPrimary: r.needsPrimary},
			})
		case f.refreshes.active(r.hash):
			reloading = append(reloading, r.hash)
		}
	}
	if len(starting) > 0 {
		reloading = append(reloading, f.startRefreshes(starting)...)
	}
	for _, r := range rounds {
		if r.due && r.forFresh && !slices.Contains(reloading, r.hash) {
			f.serveStale(r)
			if f.cache.Store != nil {
				f.countHit(r)
			}
		}
		r.due = false
	}
}

// skipsRefresh reports whether a background refresh would be useless: Redis, where it starts, is
// down; the breaker is open; or, without Redis, a load has failed a moment ago.
func (f *Fetcher) skipsRefresh(r *Round) bool {
	return f.cache.Conn != nil && f.cache.Conn.Down(int(r.slotRange)) != nil ||
		f.cache.Store == nil && f.Source.Failures.Local(r.text) ||
		f.Source.Broken()
}

// DueEarly decides at random whether a hit in memory is refreshed early. left is the rest of its
// TTL, delta is the Delta of the item, and hash is the hash of its key in this process. DueEarly
// does not allocate, because near the end of the TTL it returns true for each hit until the refresh
// has ended.
func (f *Fetcher) DueEarly(hash uint64, left, delta time.Duration) bool {
	return f.drawEarlyRefresh(left, delta) && !f.refreshes.has(hash)
}

// RefreshEarly starts an early background refresh after a hit in memory. r is a new round of the
// key, and left is the rest of the TTL.
func (f *Fetcher) RefreshEarly(r *Round, left time.Duration) {
	if f.begin(r); r.bypass || f.skipsRefresh(r) {
		return
	}
	r.refresh = refresh{early: true, memoryUntil: time.Now().Add(left)}
	f.startRefreshes([]*Round{r})
}

// startRefreshes starts a background flight of the rounds whose keys are not being refreshed
// already. It returns the hashes of all keys of rounds that are being reloaded now, by this flight
// or another one. The context of the flight contains nothing of the callers: no values, transaction
// or credentials. A flight is limited to the keys of a few calls of the load function. The other
// keys are refreshed after their next read.
func (f *Fetcher) startRefreshes(rounds []*Round) (reloading []uint64) {
	started, reloading := f.refreshes.enter(rounds, 4*MaxCalls*f.Chunk)
	if len(started) == 0 {
		return reloading
	}
	if f.cache.Store == nil {
		for _, r := range started {
			if ago, _, ok := f.fillFromStale(r); ok && ago < 0 && !r.early { // another round has loaded it
				r.step = ended
				continue
			}
			r.withoutLease, r.step = true, toLoad
			f.countRefresh(r)
		}
	}
	go func() {
		defer f.refreshes.leave(started)
		ctx, end := f.observe(f.Life, OpRefresh, len(started))
		b := &batch{fetcher: f, ctx: ctx, rounds: started, open: slices.Clone(started), refresh: true, background: true}
		b.run()
		end(firstError(started))
		b.pauseRefused()
	}()
	return reloading
}

func firstError(rounds []*Round) error {
	for _, r := range rounds {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// readStamps reads the entries of hits in memory, to find out which entry a claim must replace.
// If an entry ends later than the copy in memory, another process has refreshed it.
func (b *batch) readStamps() {
	if !b.background {
		return
	}
	rounds := slices.DeleteFunc(slices.Clone(atStep(b.open, toLookUp)), func(r *Round) bool { return r.stampKnown })
	if len(rounds) == 0 {
		return
	}
	b.fetcher.cache.Store.Read(b.ctx, &b.fetcher.sizes, names(rounds), func(i int, state *lease.State, err error) {
		r, e := rounds[i], &state.Entry
		now := b.fetcher.now(r.slotRange)
		newer := e.Expiry.Sub(now) > time.Until(r.memoryUntil)+Drift
		b.fetcher.count(err)
		switch {
		case err != nil || state.Kind != lease.Stored || e.Generation != r.generation.Number:
			r.step = ended // the next reader of the key handles it
		case newer && state.Long:
			r.step = ended // the next reader of the key reads it whole
		case newer:
			b.fetcher.adoptEntry(r, e)
		case e.Taken(now):
			r.step, r.refreshedElsewhere = ended, true
		default:
			r.stamp, r.stampKnown = e.Stamp, true
		}
	})
}

// Drift is the tolerated difference between two readings of the end of a TTL, by two clocks.
const Drift = 10 * time.Millisecond

// adoptEntry puts an entry in memory that another process has loaded.
func (f *Fetcher) adoptEntry(r *Round, e *lease.Entry) {
	r.step = ended
	if f.decode(r, e) == nil {
		f.putEntryInMemory(r, e)
	}
}

// refusedPause is the pause before the next refresh of a key that the limits of the database, or
// the circuit breaker, have refused. Each attempt costs a claim and a release. During the pause the
// flight counts toward maxRefreshes. So if there are many such keys, each of them is tried less
// often.
const refusedPause = 100 * time.Millisecond

// pauseRefused keeps keys that were not loaded from being refreshed for a while. Keys that were
// loaded do not pause: a caller that has read Redis before the new value was stored would conclude
// that its refresh cannot start. Keys that other processes are refreshing stay in the flight until
// those refreshes have probably ended. Then the next hit in memory finds the new entry.
func (b *batch) pauseRefused() {
	var refused []*Round
	var pause time.Duration
	for _, r := range b.rounds {
		if r.Err != nil || r.notAttempted {
			refused = append(refused, r)
		}
		switch {
		case r.notAttempted:
			pause = max(pause, refusedPause)
		case r.refreshedElsewhere && b.fetcher.Memory != nil:
			pause = max(pause, b.fetcher.Source.Pace.Mean()+Drift)
		}
	}
	b.fetcher.refreshes.pause(refused)
	_ = retry.Sleep(b.ctx, pause) // it is the last thing that the refresh does
}

// maxRefreshes is the maximum number of concurrent flights of refreshes of a loader. While so many
// run, no refresh starts; the next read of the key tries again.
const maxRefreshes = 64

// refreshes is the set of a loader's keys that are in a flight of background refreshes.
type refreshes struct {
	mu      sync.Mutex
	keys    map[uint64]bool // by the hash in this process; true if the key pauses because its refresh was refused
	flights int
	running sync.WaitGroup // the flights
	closed  bool
}

// enter starts a flight of at most limit rounds whose keys are in no flight, and returns these
// rounds. reloading contains the hashes of all keys of rounds that are in a flight after that,
// except keys that pause.
func (r *refreshes) enter(rounds []*Round, limit int) (entered []*Round, reloading []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.flights >= maxRefreshes {
		limit = 0
	}
	for _, round := range rounds {
		paused, running := r.keys[round.hash]
		if !running && len(entered) < limit {
			if r.keys == nil {
				r.keys = make(map[uint64]bool)
			}
			r.keys[round.hash] = false
			entered = append(entered, round)
			running = true
		}
		if running && !paused {
			reloading = append(reloading, round.hash)
		}
	}
	if len(entered) > 0 {
		r.flights++
		r.running.Add(1)
	}
	return entered, reloading
}

// leave ends the flight of rounds.
func (r *refreshes) leave(rounds []*Round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, round := range rounds {
		delete(r.keys, round.hash)
	}
	r.flights--
	r.running.Done()
}

// pause marks the keys of rounds as refused: they are no longer being reloaded, but stay in their
// flight.
func (r *refreshes) pause(rounds []*Round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, round := range rounds {
		r.keys[round.hash] = true
	}
}

// has reports whether a flight has the key, paused or not.
func (r *refreshes) has(key uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, running := r.keys[key]
	return running
}

// active reports whether this process is reloading the key.
func (r *refreshes) active(key uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	paused, running := r.keys[key]
	return running && !paused
}

// close prevents new flights.
func (r *refreshes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}
