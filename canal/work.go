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

// work is the combined work of several batches, without repetitions.
type work struct {
	// to invalidate, also groups and whole loaders; true: the filters of the loader admit the key
	// first
	keys    map[cacheaside.Key]bool
	filters map[*target]*additions
	parked  []toPark // changes that were not understood
}

// toPark is a change to be parked, with the error that caused it.
type toPark struct {
	parking.Parked
	cause error
}

// target is the filter of a Binding.
type target struct {
	Filter
	name, title string // of the Binding
}

// additions is the pending work for one filter.
type additions struct {
	keys    map[string]struct{}
	deleted int
}

// newWork returns an empty work with room for about n keys.
func newWork(n int) *work {
	return &work{keys: make(map[cacheaside.Key]bool, n), filters: map[*target]*additions{}}
}

func (w *work) invalidate(k cacheaside.Key) {
	if !w.keys[k] {
		w.keys[k] = false
	}
}

// invalidateGroup adds a group. It returns an error if the group has no name.
func (w *work) invalidateGroup(k cacheaside.Key) error {
	err := k.Check()
	if err == nil {
		w.invalidate(k)
	}
	return err
}

func (w *work) admit(k cacheaside.Key) { w.keys[k] = true }

func (w *work) additions(f *target) *additions {
	a := w.filters[f]
	if a == nil {
		a = &additions{keys: map[string]struct{}{}}
		w.filters[f] = a
	}
	return a
}

func (w *work) add(f *target, key string) { w.additions(f).keys[key] = struct{}{} }
func (w *work) deleted(f *target)         { w.additions(f).deleted++ }

// try performs the pending work. If it returns an error, the failed part remains, and try can be
// called again.
func (w *work) try(ctx context.Context, a *alarm, cache *cacheaside.Cache) error {
	var errs []error
	for f, added := range w.filters {
		err := a.track(f.title, f.name, func() error { return added.try(ctx, f) })
		if err == nil {
			delete(w.filters, f)
		}
		errs = append(errs, err)
	}
	if len(w.keys) > 0 {
		errs = append(errs, a.track(w.describeKeys(), "", func() error { return w.tryKeys(ctx, cache) }))
	}
	return errors.Join(errs...)
}

// describeKeys names what tryKeys waits for, for Stats and messages.
func (w *work) describeKeys() string {
	names := map[string]struct{}{}
	for k, admit := range w.keys {
		if admit {
			names[k.Loader] = struct{}{}
		}
	}
	if len(names) == 0 {
		return "the invalidation"
	}
	return "the invalidation or the filter of a loader (" + strings.Join(slices.Sorted(maps.Keys(names)), ", ") + ")"
}

// try updates a filter. It may be repeated: adding a key twice does no harm.
func (a *additions) try(ctx context.Context, f Filter) error {
	if len(a.keys) > 0 {
		committed, err := f.Inserting(ctx, slices.Collect(maps.Keys(a.keys)))
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

// tryKeys invalidates all keys. Filters admit new keys before anything is invalidated, because
// the absence of a row may be cached until then. If a filter fails, all keys are invalidated
// anyway; the keys to be admitted remain, and are tried again.
func (w *work) tryKeys(ctx context.Context, cache *cacheaside.Cache) error {
	keys, admits := make([]cacheaside.Key, 0, len(w.keys)), false
	for k, admit := range w.keys {
		admits = admits || admit
		keys = append(keys, cacheKey(k, admit))
	}
	if !admits {
		return w.removeDone(cache.InvalidateKeys(ctx, keys...))
	}
	committed, err := cache.InsertingKeys(ctx, keys...)
	if err == nil {
		return w.removeDone(committed(ctx))
	}
	if invalidated := cache.InvalidateKeys(ctx, keys...); invalidated == nil {
		maps.DeleteFunc(w.keys, func(_ cacheaside.Key, admit bool) bool { return !admit })
	}
	return err
}

// cacheKey returns k as it is passed to the cache: marked as existing unless filters must admit
// it.
func cacheKey(k cacheaside.Key, admit bool) cacheaside.Key {
	if admit {
		return k
	}
	return k.Existing()
}

// removeDone removes the keys that have not failed according to err, and returns err.
func (w *work) removeDone(err error) error {
	batch, some := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err)
	switch {
	case err == nil:
		clear(w.keys)
	case some:
		succeeded := func(k cacheaside.Key, admit bool) bool { return batch.Errs[cacheKey(k, admit)] == nil }
		maps.DeleteFunc(w.keys, succeeded)
	}
	return err
}
