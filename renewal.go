package cacheaside

import (
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
)

// renewal is what a round knows of the reload in the background that it has found to be due, or, in a round of its own, is.
type renewal struct {
	renew   bool        // it is due
	early   bool        // while the value is fresh
	stamp   lease.Token // of the entry that is to be renewed
	known   bool        // which that is
	until   time.Time   // else, when the value that is in memory ends: a later entry need not be renewed
	busy    bool        // another process does it
	suspect bool        // what is cached was expired, or is to be refreshed: there may be a change that a replica has not heard of
}

// renewAll begins to load again, in the background, what rounds have found to be due. Who would wait for that in vain, since it cannot begin, is given what is stale. Call it before they land.
func (l *Loader[K, V]) renewAll(rounds []*round[K, V]) {
	var due []*round[K, V]
	for _, r := range rounds {
		s := &r.Result
		if !s.renew || l.spares(s) {
			continue
		}
		due = append(due, &round[K, V]{Key: r.Key, Result: state[V]{
			renewal: s.renewal, step: toLook, text: s.text, name: s.name, hashed: s.hashed, stable: s.stable, place: s.place, era: s.era, read: s.read, generation: s.generation,
		}})
	}
	var begun []K // some may be over already
	if len(due) > 0 {
		begun = l.startRenewals(due)
	}
	for _, r := range rounds {
		if s := &r.Result; s.renew {
			s.renew = false
			if s.soft && !l.renewals.active(r.Key) && !slices.Contains(begun, r.Key) {
				l.giveStale(r, true)
				if l.cache.store != nil {
					l.countHit(s)
				}
			}
		}
	}
}

// spares tells whether a renewal need not be tried: Redis, where it begins, is out of reach; the breaker is open; or, without Redis, it has failed a moment ago.
func (l *Loader[K, V]) spares(s *state[V]) bool {
	return l.cache.conn != nil && l.cache.conn.Down(int(s.place)) != nil ||
		l.cache.store == nil && l.source.Failures.Here(s.text) ||
		l.source.Broken()
}

// nearEnd throws the die for a hit in memory whose TTL is about to end.
func (l *Loader[K, V]) nearEnd(item *local.Item[K, V]) {
	if item.Kept() { // nothing of it is in Redis
		l.counters.hitsWhileDown.Add(1)
		return
	}
	left := item.Left(l.memory)
	if !l.due(left, time.Duration(item.Delta)*time.Microsecond) || l.renewals.has(item.Key) { // near the end each hit wins, until the reload has come
		return
	}
	r := &round[K, V]{Key: item.Key}
	if l.begin(r); r.Err != nil || r.Result.bypass || l.spares(&r.Result) {
		return
	}
	r.Result.renewal = renewal{early: true, until: time.Now().Add(left)}
	l.startRenewals([]*round[K, V]{r})
}

// startRenewals begins a flight of those rounds whose keys are in none. Its context has nothing of those who have read: no values, transaction or credentials.
//
// It answers which it has begun. It takes no more of them than are loaded in a few rounds: what is left is for the next who reads it, and may be loaded sooner so.
func (l *Loader[K, V]) startRenewals(rounds []*round[K, V]) (begun []K) {
	rounds = rounds[:min(len(rounds), 4*maxCalls*l.chunk)]
	keys := make([]K, len(rounds))
	for i, r := range rounds {
		keys[i] = r.Key
	}
	entered := l.renewals.enter(keys)
	if len(entered) == 0 {
		return nil
	}
	own := ofKeys(rounds, entered)
	if l.cache.store == nil {
		for _, r := range own {
			r.Result.alone, r.Result.step = true, toLoad
			l.renewed(&r.Result)
		}
	}
	go func() {
		defer l.renewals.leave(entered)
		ctx, end := l.observe(l.life, OpRefresh, len(own))
		b := &batch[K, V]{l: l, ctx: ctx, rounds: own, open: slices.Clone(own), refresh: true, renewal: true}
		b.run()
		end(firstError(own))
		b.rest(entered)
		b.catchUp()
	}()
	return entered
}

// ofKeys are those of rounds that are of keys, which are some of theirs, in their order.
func ofKeys[K comparable, V any](rounds []*round[K, V], keys []K) (of []*round[K, V]) {
	for _, r := range rounds {
		if len(of) < len(keys) && keys[len(of)] == r.Key {
			of = append(of, r)
		}
	}
	return of
}

func firstError[K comparable, V any](rounds []*round[K, V]) error {
	for _, r := range rounds {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// peek looks which entries those are that memory was hit with. One that ends later has been renewed by another process.
func (b *batch[K, V]) peek() {
	if !b.renewal {
		return
	}
	rounds := slices.DeleteFunc(slices.Clone(at(b.open, toLook)), func(r *round[K, V]) bool { return r.Result.known })
	if len(rounds) == 0 {
		return
	}
	b.l.cache.store.Read(b.ctx, &b.l.sizes, names(rounds), func(i int, held *lease.State, err error) {
		r, e := rounds[i], &held.Entry
		s := &r.Result
		b.l.count(err)
		switch {
		case err != nil || held.Kind != lease.Stored || e.Generation != s.era.Generation:
			s.step = over // who reads it sees to it
		case e.Expiry.After(s.until.Add(drift)) && held.Long:
			s.step = over // who reads it fetches it
		case e.Expiry.After(s.until.Add(drift)):
			b.l.takeOver(r, e)
		case e.Taken(time.Now()):
			s.step, s.busy = over, true
		default:
			s.stamp, s.known = e.Stamp, true
		}
	})
}

// drift is how much the end of a value's TTL may seem to move between two readings of two clocks.
const drift = 10 * time.Millisecond

// takeOver remembers an entry that another process has loaded.
func (l *Loader[K, V]) takeOver(r *round[K, V], e *lease.Entry) {
	r.Result.step = over
	if l.decode(&r.Result, e) == nil {
		l.rememberEntry(r, e)
	}
}

// respite is how long a key whose reload the limits of the database, or its circuit breaker, have refused is left alone: each try costs a claim and its end. The flight counts
// among maxRenewals meanwhile, so that many such keys are tried the less often.
const respite = 100 * time.Millisecond

func (b *batch[K, V]) rest(keys []K) {
	b.l.renewals.rest(keys)
	if slices.ContainsFunc(b.rounds, func(r *round[K, V]) bool { return r.Result.spared }) {
		pause(b.ctx, respite)
	}
}

// catchUp looks, about when other processes have done it, at what they have renewed: so memory has it before what it holds has ended.
func (b *batch[K, V]) catchUp() {
	busy := slices.DeleteFunc(slices.Clone(b.rounds), func(r *round[K, V]) bool { return !r.Result.busy })
	if len(busy) == 0 || b.l.memory == nil {
		return
	}
	pause(b.ctx, b.l.source.Pace.Mean()+drift)
	if b.ctx.Err() != nil {
		return
	}
	for _, r := range busy {
		b.l.takeGeneration(&r.Result)
	}
	b.l.cache.store.Read(b.ctx, &b.l.sizes, names(busy), func(i int, held *lease.State, err error) {
		r, e := busy[i], &held.Entry
		if err == nil {
			err = b.l.whole(b.ctx, &r.Result, held)
		}
		b.l.count(err)
		if err == nil && held.Kind == lease.Stored && e.Generation == r.Result.era.Generation && time.Now().Before(e.Expiry) {
			b.l.takeOver(r, e)
		}
	})
}

// renewed counts a renewal that is about to load.
func (l *Loader[K, V]) renewed(s *state[V]) {
	l.counters.renewals.Add(1)
	if s.early {
		l.counters.early.Add(1)
	}
}
