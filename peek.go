package cacheaside

import (
	"context"
	"errors"
	"iter"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
)

// Peek returns what is cached for key, in this process's memory or else in Redis, and never loads
// it: ok tells whether anything is. A value may be stale, within LoaderOptions.StaleFor. If it is
// cached that there is no such row, ok is true and the error is ErrNotFound. Other errors are those
// of Redis, and ctx's; ok is false then. Peek asks no Filter, begins no reload, puts nothing into
// memory, and is not counted as a Get. Under Bypass nothing is cached.
func (l *Loader[K, V]) Peek(ctx context.Context, key K) (value V, ok bool, err error) {
	if item, found := l.peekMemory(key); found {
		value, err = l.give(valueOf[V](item.Value), item.Null)
		return value, true, err
	}
	if l.reads.Closed() {
		return value, false, l.wrap("peek", key, ErrClosed)
	}
	r := lone(key)
	if ok, err = l.fetch.Peek(ctx, r); ok {
		value, err = l.give(valueOf[V](r.Value), r.Null)
	}
	if err != nil && !ok {
		return value, false, l.wrap("peek", key, err)
	}
	return value, ok, err
}

// peekMemory is what memory has of a key and may be given out. Without Redis that may be stale.
func (l *Loader[K, V]) peekMemory(key K) (item fetch.Item, ok bool) {
	if l.aside.Load() != 0 {
		return item, false
	}
	if l.cache.store == nil {
		item, _, ok = l.fetch.Past(lone(key))
		return item, ok
	}
	return (*items[K, V])(l).Get(lone(key))
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
