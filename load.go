package cacheaside

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/source"
)

// SetTTL sets how long the value that the running load returns may stay cached, instead of
// LoaderOptions.TTL (or NullTTL, if there is no such row). In a batch load it holds for all keys of
// the call. ctx is the load's context, or made from it; with any other ctx SetTTL does nothing, so
// that a load function can be called by itself. It is brought within MinTTL and MaxTTL, and Jitter
// applies. The last call counts.
func SetTTL(ctx context.Context, ttl time.Duration) {
	source.SetTTL(ctx, min(max(ttl, MinTTL), MaxTTL))
}

// loadFunc loads rows. A key that is in neither its map nor its error has none.
type loadFunc[K comparable, V any] func(ctx context.Context, keys []K) (map[K]V, error)

// oneByOne makes a loadFunc of a function that loads one row. It is called with one key.
func oneByOne[K comparable, V any](load func(context.Context, K) (V, error)) loadFunc[K, V] {
	return func(ctx context.Context, keys []K) (map[K]V, error) {
		v, err := load(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		return map[K]V{keys[0]: v}, nil
	}
}

// newSource makes what calls the load function.
func (l *Loader[K, V]) newSource(batch bool) *source.Source {
	o := l.cache.options
	return source.New(source.Options{
		Batch: batch, LoadTimeout: l.options.LoadTimeout, ErrorTTL: l.options.ErrorTTL, NotFound: l.options.NotFound,
		Admission: limit.Door{
			Breaker:  limit.NewBreaker(l.options.BreakAt, l.options.BreakFor, l.broken),
			Own:      limit.New(limit.Options{AtOnce: l.options.MaxLoads, Queue: o.MaxQueue}),
			Shared:   l.cache.limit,
			Patience: o.QueueTimeout,
		},
		Life: l.life,
		Observe: func(ctx context.Context, keys int) (context.Context, func(error)) {
			return l.observe(ctx, OpLoad, keys)
		},
		Warn:   func(what string, err error) { l.cache.journal.warn(what, l.name, err) },
		Caught: caught,
		Panicked: func(err error) bool {
			_, panicked := errors.AsType[*PanicError](err)
			return panicked
		},
	})
}

// broken notes that the circuit breaker has opened, or closed.
func (l *Loader[K, V]) broken(open bool) {
	if open {
		l.cache.journal.warn("the circuit breaker is open: most loads have failed", l.name, nil)
	} else {
		l.cache.journal.inform("the circuit breaker is closed", l.name)
	}
}

// query calls the load function with keys, for the source.
func (l *Loader[K, V]) query(keys []K) source.Query {
	return func(ctx context.Context) source.Answer {
		arg := slices.Clone(keys) // which it may sort
		values, err := l.load(ctx, arg)
		return answer(keys, values, err)
	}
}

// answer parts what a load function has returned by the keys that it was asked for.
func answer[K comparable, V any](keys []K, values map[K]V, err error) source.Answer {
	partial, _ := errors.AsType[*BatchError[K]](err)
	a := source.Answer{Replies: make([]source.Reply, len(keys)), Unasked: len(values), Err: err}
	for i, key := range keys {
		value, found := values[key]
		if found {
			a.Unasked--
		}
		a.Replies[i] = source.Reply{Value: value, Found: found, Err: err}
		if partial == nil {
			continue
		}
		if own := partial.Errs[key]; own != nil || found {
			a.Replies[i].Err, a.Replies[i].Own = own, own != nil
		}
	}
	return a
}

// loadByItself loads rows within what all loads may ask of the database, but without leases, and
// stores nothing.
func (l *Loader[K, V]) loadByItself(ctx context.Context, keys []K, how source.Call) []source.Row {
	ctx = fetch.WithPrimary(ctx, l.cache.options.holds()) // Redis was not asked: see PreferPrimary
	rows := l.source.Load(ctx, l.texts(keys), l.query(keys), how)
	note(l.returned, keys, rows)
	return rows
}

// texts are the texts of keys; of one that has none, the empty one.
func (l *Loader[K, V]) texts(keys []K) []string {
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i], _ = l.encodeKey(key)
	}
	return texts
}
