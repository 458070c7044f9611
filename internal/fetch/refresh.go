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
func (l *Fetcher) refreshDue(rounds []*Round) {
	var due []*Round
	var reloading []uint64 // by now some may have ended
	for _, r := range rounds {
		switch {
		case !r.renew:
		case !l.skipsRefresh(r):
			due = append(due, &Round{
				Owner: r.Owner, Key: r.Key, step: toLook, identity: r.identity, refresh: r.refresh,
				snapshot: snapshot{generation: r.generation, takenAt: r.takenAt, version: r.version, needsPrimary: r.needsPrimary},
			})
		case l.refreshes.active(r.hash):
			reloading = append(reloading, r.hash)
		}
	}
	if len(due) > 0 {
		reloading = append(reloading, l.startRefreshes(due)...)
	}
	for _, r := range rounds {
		if r.renew && r.forFresh && !slices.Contains(reloading, r.hash) {
			l.giveStale(r)
			if l.cache.Store != nil {
				l.countHit(r)
			}
		}
		r.renew = false
	}
}

// skipsRefresh tells whether a background refresh need not be tried: Redis, where it begins, is out
// of reach; the breaker is open; or, without Redis, a load has failed a moment ago.
func (l *Fetcher) skipsRefresh(r *Round) bool {
	return l.cache.Conn != nil && l.cache.Conn.Down(int(r.slotRange)) != nil ||
		l.cache.Store == nil && l.Source.Failures.Here(r.text) ||
		l.Source.Broken()
}

// DueEarly throws the die for a hit in memory whose TTL ends so soon. delta is Delta of its load,
// hash that of its key in this process. It allocates nothing: near the end each hit wins, until the
// refresh has come.
func (l *Fetcher) DueEarly(hash uint64, left, delta time.Duration) bool {
	return l.due(left, delta) && !l.refreshes.has(hash)
}

// RefreshEarly begins a background refresh for a hit in memory, of a round that has not begun,
// whose TTL ends so soon.
func (l *Fetcher) RefreshEarly(r *Round, left time.Duration) {
	if l.begin(r); r.bypass || l.skipsRefresh(r) {
		return
	}
	r.refresh = refresh{early: true, until: time.Now().Add(left)}
	l.startRefreshes([]*Round{r})
}

// startRefreshes begins a flight of those rounds whose keys are in none, and returns the hashes of
// all that are being reloaded then. Its context has nothing of the callers: no values, transaction
// or credentials. It takes no more rounds than are loaded in a few calls: the next reader of
// another key begins its refresh.
func (l *Fetcher) startRefreshes(rounds []*Round) (reloading []uint64) {
	own, reloading := l.refreshes.enter(rounds, 4*MaxCalls*l.Chunk)
	if len(own) == 0 {
		return reloading
	}
	if l.cache.Store == nil {
		for _, r := range own {
			if ago, _, ok := l.past(r); ok && ago < 0 && !r.early { // it has been loaded since it was found to be stale
				r.step = over
				continue
			}
			r.withoutLease, r.step = true, toLoad
			l.countRefresh(r)
		}
	}
	go func() {
		defer l.refreshes.leave(own)
		ctx, end := l.observe(l.Life, OpRefresh, len(own))
		b := &batch{l: l, ctx: ctx, rounds: own, open: slices.Clone(own), refresh: true, background: true}
		b.run()
		end(firstError(own))
		b.rest()
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
func (b *batch) peek() {
	if !b.background {
		return
	}
	rounds := slices.DeleteFunc(slices.Clone(at(b.open, toLook)), func(r *Round) bool { return r.known })
	if len(rounds) == 0 {
		return
	}
	b.l.cache.Store.Read(b.ctx, &b.l.sizes, names(rounds), func(i int, state *lease.State, err error) {
		r, e := rounds[i], &state.Entry
		b.l.count(err)
		switch {
		case err != nil || state.Kind != lease.Stored || e.Generation != r.generation.Number:
			r.step = over // its next reader sees to it
		case e.Expiry.After(r.until.Add(Drift)) && state.Long:
			r.step = over // its next reader fetches it
		case e.Expiry.After(r.until.Add(Drift)):
			b.l.takeOver(r, e)
		case e.Taken(time.Now()):
			r.step, r.busy = over, true
		default:
			r.stamp, r.known = e.Stamp, true
		}
	})
}

// Drift is how much the end of a value's TTL may seem to move between two readings of two clocks.
const Drift = 10 * time.Millisecond

// takeOver puts into memory an entry that another process has loaded.
func (l *Fetcher) takeOver(r *Round, e *lease.Entry) {
	r.step = over
	if l.decode(r, e) == nil {
		l.putEntryInMemory(r, e)
	}
}

// respite is how long a key is left alone whose refresh the limits of the database, or its circuit
// breaker, have refused: each try costs a claim and its end. The flight counts among maxRefreshes
// meanwhile, so that many such keys are tried less often.
const respite = 100 * time.Millisecond

// rest lets the keys rest that were not loaded. The others do not: a caller that has looked before
// the new value was stored, and asks now, would take its reload for one that could not begin. Keys
// that other processes refresh stay in the flight until about when they have done so: then the next
// hit in memory finds the new entry.
func (b *batch) rest() {
	var refused []*Round
	var pause time.Duration
	for _, r := range b.rounds {
		if r.Err != nil || r.notAttempted {
			refused = append(refused, r)
		}
		switch {
		case r.notAttempted:
			pause = max(pause, respite)
		case r.busy && b.l.Memory != nil:
			pause = max(pause, b.l.Source.Pace.Mean()+Drift)
		}
	}
	b.l.refreshes.rest(refused)
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
	under   sync.WaitGroup // the flights
	closed  bool
}

// enter begins a flight of rounds whose keys are in none, at most so many, and returns them.
// reloading has the hashes of all that are being reloaded then, and do not rest.
func (n *refreshes) enter(rounds []*Round, most int) (entered []*Round, reloading []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.flights >= maxRefreshes {
		most = 0
	}
	for _, r := range rounds {
		rests, under := n.keys[r.hash]
		if !under && len(entered) < most {
			if n.keys == nil {
				n.keys = make(map[uint64]bool)
			}
			n.keys[r.hash] = false
			entered = append(entered, r)
			under = true
		}
		if under && !rests {
			reloading = append(reloading, r.hash)
		}
	}
	if len(entered) > 0 {
		n.flights++
		n.under.Add(1)
	}
	return entered, reloading
}

// leave ends the flight of rounds.
func (n *refreshes) leave(rounds []*Round) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range rounds {
		delete(n.keys, r.hash)
	}
	n.flights--
	n.under.Done()
}

// rest notes that the keys of rounds were not reloaded, and are not being reloaded any more, though
// they have not left.
func (n *refreshes) rest(rounds []*Round) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range rounds {
		n.keys[r.hash] = true
	}
}

// has reports whether a flight has a key, resting or not.
func (n *refreshes) has(key uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, under := n.keys[key]
	return under
}

// active reports whether a key is being reloaded by this process.
func (n *refreshes) active(key uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	rests, under := n.keys[key]
	return under && !rests
}

// close lets no flight begin any more.
func (n *refreshes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
}
