package rows

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/fetch"
)

// Filter is cacheaside.Filter, as far as loaders need it.
type Filter interface {
	fetch.Filter
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)
}

// HasFilter reports whether the loader has a filter.
func (r *Reader[K, V]) HasFilter() bool { return r.options.Filter != nil }

// Inserting adds the keys of rows to the filter, if there is one, and counts errors. committed,
// never nil, finishes that.
func (r *Reader[K, V]) Inserting(ctx context.Context, texts []string) (committed func(context.Context) error, err error) {
	if !r.HasFilter() || len(texts) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	finish, err := r.addToFilter(ctx, texts)
	if err != nil {
		r.Counters.FilterErrors.Add(1)
		return nil, err
	}
	return func(ctx context.Context) error {
		err := r.guarded(ctx, finish)
		if err != nil {
			r.Counters.FilterErrors.Add(1)
		}
		return err
	}, nil
}

func (r *Reader[K, V]) addToFilter(ctx context.Context, texts []string) (committed func(context.Context) error, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = r.cache.Caught(p)
		}
	}()
	committed, err = r.options.Filter.Admit(ctx, texts)
	if committed == nil {
		committed = func(context.Context) error { return nil }
	}
	return committed, err
}

// guarded calls f, and makes an error of a panic.
func (r *Reader[K, V]) guarded(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = r.cache.Caught(p)
		}
	}()
	return f(ctx)
}
