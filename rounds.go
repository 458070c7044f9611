package cacheaside

import (
	"context"
	"slices"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/source"
)

// round is one round of one key, as package flight has it. Its Result is what package fetch knows.
type round[K comparable] = flight.Round[K, fetch.Round]

// reads are rounds that are read in one way.
type reads[K comparable] = flight.Group[K, fetch.Round]

// lone is a round that no caller waits for.
func lone[K comparable](key K) *fetch.Round {
	r := &round[K]{Key: key}
	r.Result.Owner = r
	return &r.Result
}

func owner[K comparable](r *fetch.Round) *round[K] { return r.Owner.(*round[K]) }

func keyOf[K comparable](r *fetch.Round) K { return owner[K](r).Key }

func typedKeys[K comparable](rounds []*fetch.Round) []K {
	keys := make([]K, len(rounds))
	for i, r := range rounds {
		keys[i] = keyOf[K](r)
	}
	return keys
}

// valueOf is a value that package fetch has had; the zero V if there is none.
func valueOf[V any](value any) V {
	v, _ := value.(V) // a nil is no V if that is an interface
	return v
}

// fetched are rounds as package fetch has them.
func fetched[K comparable](rounds []*round[K]) []*fetch.Round {
	if len(rounds) == 1 {
		return fetch.Of(joined(rounds[0]))
	}
	of := make([]*fetch.Round, len(rounds))
	for i, r := range rounds {
		of[i] = joined(r)
	}
	return of
}

func joined[K comparable](r *round[K]) *fetch.Round {
	r.Result.Owner, r.Result.Asked = r, r.Asked
	return &r.Result
}

// landing gives out rounds of a flight.
type landing[K comparable] struct {
	*flight.Flight[K, fetch.Round]
}

func (f landing[K]) Land(done []*fetch.Round) {
	if len(done) == 0 {
		return
	}
	rounds := make([]*round[K], len(done))
	for i, r := range done {
		rounds[i] = owner[K](r)
		rounds[i].Err = r.Err
	}
	f.Flight.Land(rounds)
}

func (f landing[K]) TakeIn(r *fetch.Round) { f.Flight.TakeIn(owner[K](r)) }

// group makes rounds that are read so; late tells whether those who come while a round runs may be
// given its result.
func (l *Loader[K, V]) group(how fetch.How, late func(*fetch.Round) bool) *reads[K] {
	return flight.New(flight.Hooks[K, fetch.Round]{
		First: func(ctx context.Context, rounds []*round[K]) (done, rest []*round[K]) {
			l.fetch.First(ctx, how, fetched(rounds))
			return firstDone(rounds)
		},
		Fly: func(ctx context.Context, f *flight.Flight[K, fetch.Round]) {
			l.fetch.Read(ctx, how, fetched(f.Rounds), landing[K]{f})
		},
		Await: l.await, Late: late, Caught: caught,
	})
}

// firstDone parts rounds into those that are over, and the others.
func firstDone[K comparable](rounds []*round[K]) (done, rest []*round[K]) {
	n := 0
	for _, r := range rounds {
		if r.Result.Over() {
			r.Err = r.Result.Err
			n++
		}
	}
	switch n {
	case 0:
		return nil, rounds
	case len(rounds):
		return rounds, nil
	}
	isOver := func(r *round[K]) bool { return r.Result.Over() }
	done = slices.DeleteFunc(slices.Clone(rounds), func(r *round[K]) bool { return !isOver(r) })
	return done, slices.DeleteFunc(rounds, isOver)
}

// refreshGroup makes rounds that load anew.
func (l *Loader[K, V]) refreshGroup() *reads[K] {
	return flight.New(flight.Hooks[K, fetch.Round]{
		Fly: func(ctx context.Context, f *flight.Flight[K, fetch.Round]) {
			l.fetch.Refresh(ctx, fetched(f.Rounds), landing[K]{f})
		},
		Await: l.await, Late: never, Caught: caught,
	})
}

func never(*fetch.Round) bool { return false }

// await is called when somebody with this context is about to wait for rounds: see flight.Hooks.
func (l *Loader[K, V]) await(ctx context.Context, rounds []*round[K]) (over func(), refused []error) {
	return l.source.Await(ctx, len(rounds), func(i int) (string, bool) {
		if rounds[i] == nil || rounds[i].Landed() {
			return "", false
		}
		text, err := l.encodeKey(rounds[i].Key)
		return text, err == nil
	})
}

// newFetcher makes what reads the keys that memory does not answer.
func (l *Loader[K, V]) newFetcher() *fetch.Fetcher {
	o := l.options
	return fetch.New(l.cache.shared(), fetch.Options{
		TTL: o.TTL, NullTTL: o.NullTTL, StaleFor: o.StaleFor, SoftTimeout: o.SoftTimeout, MemoryTTL: o.MemoryTTL,
		LoadTimeout: o.LoadTimeout, ErrorTTL: o.ErrorTTL, AuditEvery: o.AuditEvery, EarlyRefresh: o.EarlyRefresh, Jitter: o.Jitter,
		MaxValueBytes: o.MaxValueBytes, RedisDown: fetch.DownPolicy(o.RedisDown), Locker: o.Locker, MustLock: o.MustLock,
		Name: l.name, Chunk: l.chunk, Calls: l.calls, Keys: l.keys, Memory: l.memory, Eras: &l.eras, Source: l.source,
		Items: (*items[K, V])(l), Codec: values[V]{l.codec}, Filter: o.Filter, Counters: &l.counters,
		Life: l.life, Bypassed: l.bypassed,
		Text:  func(r *fetch.Round) (string, error) { return l.encodeKey(keyOf[K](r)) },
		Query: func(rounds []*fetch.Round) source.Query { return l.query(typedKeys[K](rounds)) },
		Loaded: func(rounds []*fetch.Round, rows []source.Row) {
			if l.returned != nil {
				note(l.returned, typedKeys[K](rounds), rows)
			}
		},
	})
}

// shared is what the fetchers of the cache share.
func (c *Cache) shared() *fetch.Shared {
	o := c.options
	return &fetch.Shared{
		Store: c.store, Conn: c.conn, Channel: c.channel, Holds: c.holds,
		LeaseTTL: o.LeaseTTL, QueueTimeout: o.QueueTimeout, ReadTimeout: o.ReadTimeout, MaxStaleness: o.MaxStaleness, ReplicaLag: o.ReplicaLag,
		MayHold: o.holds(), Observe: c.observe, Observed: o.Observer != nil, Warn: c.journal.warn, Caught: caught,
	}
}
