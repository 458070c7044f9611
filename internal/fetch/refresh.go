package fetch

import (
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// refreshDue begins the background refreshes that rounds have found to be due. Callers who would
// wait for one in vain, since it cannot begin, get the stale value. Call it before the rounds
// complete.
func (f *Fetcher) startDueRefreshes(rounds []*Round) {
	var starting []*Round
	var reloading []uint64 // by now some may have ended
	for _, r := range rounds {
		switch {
		case !r.due:
		case !f.skipsRefresh(r):
			starting = append(starting, &Round{
				Owner: r.Owner, Key: r.Key, step: toLookUp, identity: r.identity, refresh: r.refresh,
				snapshot: snapshot{generation: r.generation, takenAt: r.takenAt, version: r.version, needsPrimary: r.needsPrimary},
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

// skipsRefresh tells whether a background refresh need not be tried: Redis, where it begins, is out
// of reach; the breaker is open; or, without Redis, a load has failed a moment ago.
func (f *Fetcher) skipsRefresh(r *Round) bool {
	return f.cache.Conn != nil && f.cache.Conn.Down(int(r.slotRange)) != nil ||
		f.cache.Store == nil && f.Source.Failures.Local(r.text) ||
		f.Source.Broken()
}

// DueEarly throws the die for a hit in memory whose TTL ends so soon. delta is Delta of its load,
// hash that of its key in this process. It allocates nothing: near the end each hit wins, until the
// refresh has come.
func (f *Fetcher) DueEarly(hash uint64, left, delta time.Duration) bool {
	return f.drawEarlyRefresh(left, delta) && !f.refreshes.has(hash)
}

// RefreshEarly begins a background refresh for a hit in memory, of a round that has not begun,
// whose TTL ends so soon.
func (f *Fetcher) RefreshEarly(r *Round, left time.Duration) {
	if f.begin(r); r.bypass || f.skipsRefresh(r) {
		return
	}
	r.refresh = refresh{early: true, memoryUntil: time.Now().Add(left)}
	f.startRefreshes([]*Round{r})
}

// startRefreshes begins a flight of those rounds whose keys are in none, and returns the hashes of
// all that are being reloaded then. Its context has nothing of the callers: no values, transaction
// or credentials. It takes no more rounds than are loaded in a few calls: the next reader of
// another key begins its refresh.
func (f *Fetcher) startRefreshes(rounds []*Round) (reloading []uint64) {
	own, reloading := f.refreshes.enter(rounds, 4*MaxCalls*f.Chunk)
	if len(own) == 0 {
		return reloading
	}
	if f.cache.Store == nil {
		for _, r := range own {
			if ago, _, ok := f.fillFromStale(r); ok && ago < 0 && !r.early { // it has been loaded since it was found to be stale
				r.step = ended
				continue
			}
			r.withoutLease, r.step = true, toLoad
			f.countRefresh(r)
		}
	}
	go func() {
		defer f.refreshes.leave(own)
		ctx, end := f.observe(f.Life, OpRefresh, len(own))
		b := &batch{fetcher: f, ctx: ctx, rounds: own, open: slices.Clone(own), refresh: true, background: true}
		b.run()
		end(firstError(own))
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

// peek looks at the entries that memory was hit with. One that ends later was refreshed by another
// process.
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
		b.fetcher.count(err)
		switch {
		case err != nil || state.Kind != lease.Stored || e.Generation != r.generation.Number:
			r.step = ended // its next reader sees to it
		case e.Expiry.After(r.memoryUntil.Add(Drift)) && state.Long:
			r.step = ended // its next reader fetches it
		case e.Expiry.After(r.memoryUntil.Add(Drift)):
			b.fetcher.adoptEntry(r, e)
		case e.Taken(time.Now()):
			r.step, r.refreshedElsewhere = ended, true
		default:
			r.stamp, r.stampKnown = e.Stamp, true
		}
	})
}

// Drift is how much the end of a value's TTL may seem to move between two readings of two clocks.
const Drift = 10 * time.Millisecond

// takeOver puts into memory an entry that another process has loaded.
func (f *Fetcher) adoptEntry(r *Round, e *lease.Entry) {
	r.step = ended
	if f.decode(r, e) == nil {
		f.putEntryInMemory(r, e)
	}
}

// respite is how long a key is left alone whose refresh the limits of the database, or its circuit
// breaker, have refused: each try costs a claim and its end. The flight counts among maxRefreshes
// meanwhile, so that many such keys are tried less often.
const refusedPause = 100 * time.Millisecond

// rest lets the keys rest that were not loaded. The others do not: a caller that has looked before
// the new value was stored, and asks now, would take its reload for one that could not begin. Keys
// that other processes refresh stay in the flight until about when they have done so: then the next
// hit in memory finds the new entry.
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
	Pause(b.ctx, pause)
}

// maxRefreshes is how many flights of refreshes a loader has under way at once. A refresh that is
// due beyond that waits for the next read of its key.
const maxRefreshes = 64

// refreshes are the keys of a loader that are being reloaded in the background.
type refreshes struct {
	mu      sync.Mutex
	keys    map[uint64]bool // by the hash in this process; true: it rests, since its reload was refused
	flights int
	running sync.WaitGroup // the flights
	closed  bool
}

// enter begins a flight of rounds whose keys are in none, at most so many, and returns them.
// reloading has the hashes of all that are being reloaded then, and do not rest.
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

// rest notes that the keys of rounds were not reloaded, and are not being reloaded any more, though
// they have not left.
func (r *refreshes) pause(rounds []*Round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, round := range rounds {
		r.keys[round.hash] = true
	}
}

// has reports whether a flight has a key, resting or not.
func (r *refreshes) has(key uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, running := r.keys[key]
	return running
}

// active reports whether a key is being reloaded by this process.
func (r *refreshes) active(key uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	paused, running := r.keys[key]
	return running && !paused
}

// close lets no flight begin any more.
func (r *refreshes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}
