package fetch

import (
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// refreshDue begins the background refreshes that rounds have found to be due. Callers who would
// wait for one in vain, since it cannot begin, get the stale value. Call it before the rounds
// complete.
func (l *Fetcher) refreshDue(rounds []*Round) {
	var due []*Round
	for _, r := range rounds {
		if !r.renew || l.skipsRefresh(r) {
			continue
		}
		due = append(due, &Round{
			Owner: r.Owner, Key: r.Key, step: toLook, identity: r.identity, refresh: r.refresh,
			snapshot: snapshot{generation: r.generation, takenAt: r.takenAt, version: r.version, needsPrimary: r.needsPrimary},
		})
	}
	var reloading []uint64 // when it was tried: by now some may be over
	if len(due) > 0 {
		reloading = l.startRefreshes(due)
	}
	for _, r := range rounds {
		if r.renew {
			r.renew = false
			if r.forFresh && !slices.Contains(reloading, l.Items.Hash(r)) && !l.refreshes.active(l.Items.Hash(r)) {
				l.giveStale(r)
				if l.cache.Store != nil {
					l.countHit(r)
				}
			}
		}
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

// startRefreshes begins a flight of those rounds whose keys are in none, and answers the hashes of
// all that are being reloaded then. Its context has nothing of the callers: no values, transaction
// or credentials. It takes no more rounds than are loaded in a few calls: the next reader of
// another key begins its refresh.
func (l *Fetcher) startRefreshes(rounds []*Round) (reloading []uint64) {
	rounds = rounds[:min(len(rounds), 4*MaxCalls*l.Chunk)]
	hashes := make([]uint64, len(rounds))
	for i, r := range rounds {
		hashes[i] = l.Items.Hash(r)
	}
	entered, reloading := l.refreshes.enter(hashes)
	if len(entered) == 0 {
		return reloading
	}
	own := l.ofHashes(rounds, entered)
	if l.cache.Store == nil {
		for _, r := range own {
			if _, ago, ok := l.Past(r); ok && ago < 0 && !r.early { // it has been loaded since it was found to be stale
				r.step = over
				continue
			}
			r.withoutLease, r.step = true, toLoad
			l.countRefresh(r)
		}
	}
	go func() {
		defer l.refreshes.leave(entered)
		ctx, end := l.observe(l.Life, OpRefresh, len(own))
		b := &batch{l: l, ctx: ctx, rounds: own, open: slices.Clone(own), refresh: true, background: true}
		b.run()
		end(firstError(own))
		b.rest()
		b.catchUp()
	}()
	return append(entered, reloading...)
}

// ofHashes are those of rounds whose keys have these hashes, which are some of theirs, in their
// order.
func (l *Fetcher) ofHashes(rounds []*Round, hashes []uint64) (of []*Round) {
	for _, r := range rounds {
		if len(of) < len(hashes) && hashes[len(of)] == l.Items.Hash(r) {
			of = append(of, r)
		}
	}
	return of
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
// the new value was stored, and asks now, would take its reload for one that could not begin.
func (b *batch) rest() {
	var hashes []uint64
	for _, r := range b.rounds {
		if r.Err != nil || r.notAttempted {
			hashes = append(hashes, b.l.Items.Hash(r))
		}
	}
	b.l.refreshes.rest(hashes)
	if slices.ContainsFunc(b.rounds, func(r *Round) bool { return r.notAttempted }) {
		Pause(b.ctx, respite)
	}
}

// catchUp looks at the keys that other processes refresh, about when they have done so: memory has
// the new values before its own have ended.
func (b *batch) catchUp() {
	busy := slices.DeleteFunc(slices.Clone(b.rounds), func(r *Round) bool { return !r.busy })
	if len(busy) == 0 || b.l.Memory == nil {
		return
	}
	Pause(b.ctx, b.l.Source.Pace.Mean()+Drift)
	if b.ctx.Err() != nil {
		return
	}
	for _, r := range busy {
		b.l.takeSnapshot(r)
	}
	b.l.cache.Store.Read(b.ctx, &b.l.sizes, names(busy), func(i int, state *lease.State, err error) {
		r, e := busy[i], &state.Entry
		if err == nil {
			err = b.l.whole(b.ctx, r, state)
		}
		b.l.count(err)
		if err == nil && state.Kind == lease.Stored && e.Generation == r.generation.Number && time.Now().Before(e.Expiry) {
			b.l.takeOver(r, e)
		}
	})
}
