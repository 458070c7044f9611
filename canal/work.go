package canal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// work is what batches ask for, each thing once.
type work struct {
	keys    map[cacheaside.Key]bool // to be invalidated; true: the filters of their loaders admit them first
	filters map[*target]*additions
	parked  []unknown // what was not understood
}

// unknown is what is to be parked, and why.
type unknown struct {
	parking.Parked
	cause error
}

// target is the filter of a Binding.
type target struct {
	Filter
	name, title string // of the Binding
}

// additions are what is to be told to a filter.
type additions struct {
	keys    map[string]struct{}
	deleted int
}

// newWork is for about n keys.
func newWork(n int) *work {
	return &work{keys: make(map[cacheaside.Key]bool, n), filters: map[*target]*additions{}}
}

func (w *work) invalidate(k cacheaside.Key) { w.keys[k] = w.keys[k] }
func (w *work) admit(k cacheaside.Key)      { w.keys[k] = true }

func (w *work) of(f *target) *additions {
	a := w.filters[f]
	if a == nil {
		a = &additions{keys: map[string]struct{}{}}
		w.filters[f] = a
	}
	return a
}

func (w *work) add(f *target, key string) { w.of(f).keys[key] = struct{}{} }
func (w *work) deleted(f *target)         { w.of(f).deleted++ }

// try does what is left of the work. The part that it returns an error for is left, and may be
// tried again.
func (w *work) try(ctx context.Context, a *alarm, cache *cacheaside.Cache) error {
	var errs []error
	for f, added := range w.filters {
		err := a.during(f.title, f.name, func() error { return added.try(ctx, f) })
		if err == nil {
			delete(w.filters, f)
		}
		errs = append(errs, err)
	}
	if len(w.keys) > 0 {
		errs = append(errs, a.during(w.caches(), "", func() error { return w.tryKeys(ctx, cache) }))
	}
	return errors.Join(errs...)
}

// caches returns what tryKeys waits for, as people read it.
func (w *work) caches() string {
	names := map[string]struct{}{}
	for k, admit := range w.keys {
		if admit {
			names[k.Loader] = struct{}{}
		}
	}
	if len(names) == 0 {
		return "the invalidation"
	}
	return "the invalidation, or the filter, of a loader (" + strings.Join(slices.Sorted(maps.Keys(names)), ", ") + ")"
}

// try tells a filter. It may be tried again: a key that is added twice does no harm.
func (a *additions) try(ctx context.Context, f Filter) error {
	if len(a.keys) > 0 {
		committed, err := f.Admit(ctx, slices.Collect(maps.Keys(a.keys)))
		if err == nil && committed != nil {
			err = committed(ctx)
		}
		if err != nil {
			return err
		}
	}
	if a.deleted == 0 {
		return nil
	}
	return f.Deleted(ctx, a.deleted)
}

// tryKeys has filters admit before anything is invalidated, as a row's absence may be cached until
// then. A key that a filter refuses is invalidated all the same; it, and the keys that were to be
// admitted with it, are tried again.
func (w *work) tryKeys(ctx context.Context, cache *cacheaside.Cache) error {
	keys, admits := make([]cacheaside.Key, 0, len(w.keys)), false
	for k, admit := range w.keys {
		admits = admits || admit
		keys = append(keys, named(k, admit))
	}
	if !admits {
		return w.settle(cache.InvalidateKeys(ctx, keys...))
	}
	committed, err := cache.InsertingKeys(ctx, keys...)
	if err == nil {
		return w.settle(committed(ctx))
	}
	if told := cache.InvalidateKeys(ctx, keys...); told == nil {
		maps.DeleteFunc(w.keys, func(_ cacheaside.Key, admit bool) bool { return !admit })
	}
	return err
}

// named returns a key as the cache is called with it.
func named(k cacheaside.Key, admit bool) cacheaside.Key {
	if admit {
		return k
	}
	return k.Existing()
}

// settle leaves those keys of which err says that they are not done, and returns err.
func (w *work) settle(err error) error {
	batch, some := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err)
	switch {
	case err == nil:
		clear(w.keys)
	case some:
		maps.DeleteFunc(w.keys, func(k cacheaside.Key, admit bool) bool { return batch.Errs[named(k, admit)] == nil })
	}
	return err
}
