package cacheaside

import (
	"context"
	"errors"
	"iter"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
)

// Peek returns what is cached for key, in this process's memory or else in Redis, and never loads
// it: ok tells whether anything is. A value may be stale, within LoaderOptions.StaleFor. If it is
// cached that there is no such row, ok is true and the error is ErrNotFound. Other errors are those
// of Redis, and ctx's; ok is false then. Peek asks no Filter, begins no reload, puts nothing into
// memory, and is not counted as a Get. Under Bypass nothing is cached.
func (l *Loader[K, V]) Peek(ctx context.Context, key K) (value V, ok bool, err error) {
	if item, found := l.peekMemory(key); found {
		value, err = l.give(item.Value, item.Null)
		return value, true, err
	}
	r := &round[K, V]{Key: key}
	if l.reads.Closed() {
		return value, false, l.wrap("peek", key, ErrClosed)
	}
	if l.begin(r); r.Err != nil {
		return value, false, l.wrap("peek", key, r.Err)
	}
	if r.Result.bypass || l.cache.store == nil {
		return value, false, nil
	}
	for _, err := range l.learn(ctx, at([]*round[K, V]{r}, toLearn), true) {
		if err != nil {
			return value, false, l.wrap("peek", key, redisError(err))
		}
	}
	l.cache.store.First(ctx, &l.sizes, []string{r.Result.name}, func(_ int, held *lease.State, failed error) {
		if failed == nil {
			failed = l.whole(ctx, &r.Result, held)
		}
		switch {
		case failed != nil && ctx.Err() != nil:
			err = ctx.Err()
		case failed != nil:
			l.count(failed)
			err = redisError(failed)
		case held.Kind != lease.Stored || held.Entry.Generation != r.Result.era.Generation:
		default:
			var unread error
			if value, unread = l.content(&r.Result, &held.Entry); unread == nil {
				ok = true
				value, err = l.give(value, held.Entry.Null)
			}
		}
	})
	if err != nil && !ok {
		return value, false, l.wrap("peek", key, err)
	}
	return value, ok, err
}

// peekMemory is what memory has of a key and may be given out. Without Redis that may be stale.
func (l *Loader[K, V]) peekMemory(key K) (item *local.Item[K, V], ok bool) {
	if l.aside.Load() != 0 {
		return nil, false
	}
	if l.cache.store == nil {
		item, _, ok = l.past(key)
		return item, ok
	}
	item, _, ok = local.Get[K, V](l.memory, l.hash(key), &l.eras, key)
	return item, ok
}

// Each reads keys as GetMany does, when it is ranged over, and yields the value of each, or its
// error, in the order of keys: ErrNotFound for a row that does not exist.
//
//	for user, err := range users.Each(ctx, ids) {
//		…
//	}
func (l *Loader[K, V]) Each(ctx context.Context, keys []K, options ...ReadOption) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		found, err := l.GetMany(ctx, keys, options...)
		failed, _ := errors.AsType[*BatchError[K]](err)
		for _, key := range keys {
			value, ok := found[key]
			var err error
			switch {
			case ok:
			case failed != nil && failed.Errs[key] != nil:
				err = failed.Errs[key]
			case key != key: //nolint:gocritic // no map finds it
				err = l.wrap("get", key, flight.ErrNotEqual)
			default:
				err = l.notFound
			}
			if !yield(value, err) {
				return
			}
		}
	}
}
