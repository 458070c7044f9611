package cacheaside

import (
	"context"
	"errors"
	"iter"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// Peek returns what is cached for key, in this process's memory or else in Redis, and never loads
// it: ok tells whether anything is. A value may be stale, within LoaderOptions.StaleFor. If it is
// cached that there is no such row, ok is true and the error is ErrNotFound. Other errors are those
// of Redis, and ctx's; ok is false then. Peek asks no Filter, begins no reload, puts nothing into
// memory, and is not counted as a Get. Under Bypass nothing is cached.
func (l *Loader[K, V]) Peek(ctx context.Context, key K) (value V, ok bool, err error) {
	item, ok, err := l.rows.Peek(ctx, key)
	switch {
	case err != nil:
		return value, false, l.wrap("peek", key, err)
	case !ok:
		return value, false, nil
	}
	value, err = l.result(rows.Value[V](item.Value), item.Null)
	return value, true, err
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
