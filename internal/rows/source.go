package rows

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/source"
)

// OneByOne makes a load function for many keys of one that loads one row. It is called with one
// key.
func OneByOne[K comparable, V any](load func(context.Context, K) (V, error)) func(ctx context.Context, keys []K) (map[K]V, error) {
	return func(ctx context.Context, keys []K) (map[K]V, error) {
		v, err := load(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		return map[K]V{keys[0]: v}, nil
	}
}

// chunk is how many keys a call of the load function may have.
func (r *Reader[K, V]) chunk() int {
	if r.options.Batch {
		return r.options.BatchSize
	}
	return 1
}

// calls is how many calls of the load function one flight may make at once. More than MaxLoads
// would stand in each other's way.
func (r *Reader[K, V]) calls() int {
	calls := fetch.MaxCalls
	for _, most := range []int{r.cache.MaxLoads, r.options.MaxLoads} {
		if most > 0 {
			calls = min(calls, most)
		}
	}
	return calls
}

func (r *Reader[K, V]) newSource() *source.Source {
	o, of := r.options, r.options.Fetch
	return source.New(source.Options{
		Batch: o.Batch, LoadTimeout: of.LoadTimeout, ErrorTTL: of.ErrorTTL, NotFound: o.NotFound,
		Admission: limit.Admission{
			Breaker: limit.NewBreaker(o.BreakAt, o.BreakFor, r.broken),
			Own:     limit.New(limit.Options{AtOnce: o.MaxLoads, Queue: r.cache.MaxQueue}),
			Shared:  r.cache.Limit,
			MaxWait: r.cache.QueueTimeout,
		},
		Life: r.life,
		Observe: func(ctx context.Context, keys int) (context.Context, func(error)) {
			return r.cache.Observe(ctx, fetch.OpLoad, of.Name, keys)
		},
		Warn:     func(what string, err error) { r.cache.Warn(what, of.Name, err) },
		Caught:   r.cache.Caught,
		Panicked: func(err error) bool { _, ok := r.cache.Panicked(err); return ok },
	})
}

// broken notes that the circuit breaker has opened, or closed.
func (r *Reader[K, V]) broken(open bool) {
	if name := r.options.Fetch.Name; open {
		r.cache.Warn("the circuit breaker is open: most loads have failed", name, nil)
	} else {
		r.cache.Inform("the circuit breaker is closed", name)
	}
}

// LoadAlone loads rows within what all loads may ask of the database, but without leases, and
// stores nothing.
func (r *Reader[K, V]) LoadAlone(ctx context.Context, keys []K, how source.Call) []source.Row {
	ctx = fetch.WithPrimary(ctx, r.cache.MayHold) // Redis was not asked: see PreferPrimary
	texts := r.Keys.texts(keys)
	rows := r.Source.Load(ctx, texts, r.query(keys, texts), how)
	note(r.rebuilt.returned, keys, rows)
	return rows
}
