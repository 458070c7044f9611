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
	stale   map[cacheaside.Key]struct{} // to be invalidated
	born    map[cacheaside.Key]struct{} // and to be told to the filters of their loaders
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
	return &work{stale: make(map[cacheaside.Key]struct{}, n), born: map[cacheaside.Key]struct{}{}, filters: map[*target]*additions{}}
}

func (w *work) invalidate(k cacheaside.Key) { w.stale[k] = struct{}{} }
func (w *work) admit(k cacheaside.Key)      { w.born[k] = struct{}{} }

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

// keys are all that are to be invalidated, each once.
func (w *work) keys() []cacheaside.Key {
	keys := make([]cacheaside.Key, 0, len(w.stale)+len(w.born))
	for k := range w.stale {
		if _, too := w.born[k]; !too {
			keys = append(keys, k.Existing())
		}
	}
	return slices.AppendSeq(keys, maps.Keys(w.born))
}

// try does what is left of the work. The part that it returns an error for is left, and may be
// tried again.
func (w *work) try(ctx context.Context, c *Consumer) error {
	var errs []error
	for f, a := range w.filters {
		errs = append(errs, c.during(f.title, f.name, func() error { return a.try(ctx, f) }))
	}
	if len(w.stale)+len(w.born) > 0 {
		errs = append(errs, c.during(w.caches(), "", func() error { return w.tryKeys(ctx, c.cache) }))
	}
	return errors.Join(errs...)
}

// caches are what tryKeys waits for.
func (w *work) caches() string {
	names := map[string]struct{}{}
	for k := range w.born {
		names[k.Loader] = struct{}{}
	}
	if len(names) == 0 {
		return "the invalidation"
	}
	return "the invalidation, or the filter, of a loader (" + strings.Join(slices.Sorted(maps.Keys(names)), ", ") + ")"
}

// try tells a filter.
func (a *additions) try(ctx context.Context, f *target) error {
	if len(a.keys) > 0 {
		committed, err := f.Admit(ctx, slices.Collect(maps.Keys(a.keys)))
		if err == nil && committed != nil {
			err = committed(ctx)
		}
		if err != nil {
			return err
		}
		a.keys = nil
	}
	if a.deleted > 0 {
		if err := f.Deleted(ctx, a.deleted); err != nil {
			return err
		}
		a.deleted = 0
	}
	return nil
}

// tryKeys has filters admit before anything is invalidated, as a row's absence may be cached until
// then. A key that a filter refuses is invalidated all the same; it, and the keys that were to be
// admitted with it, are tried again.
func (w *work) tryKeys(ctx context.Context, cache *cacheaside.Cache) error {
	keys := w.keys()
	if len(keys) == 0 {
		return nil
	}
	if len(w.born) == 0 {
		err := cache.InvalidateKeys(ctx, keys...)
		w.settle(err)
		return err
	}
	committed, err := cache.InsertingKeys(ctx, keys...)
	if err == nil {
		err = committed(ctx)
		w.settle(err)
		return err
	}
	if told := cache.InvalidateKeys(ctx, keys...); told == nil {
		w.stale = map[cacheaside.Key]struct{}{}
	}
	return err
}

// settle leaves those keys for which err says that they are not done.
func (w *work) settle(err error) {
	if err == nil {
		w.stale, w.born = map[cacheaside.Key]struct{}{}, map[cacheaside.Key]struct{}{}
		return
	}
	batch, ok := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err)
	if !ok {
		return
	}
	maps.DeleteFunc(w.stale, func(k cacheaside.Key, _ struct{}) bool { return batch.Errs[k.Existing()] == nil })
	maps.DeleteFunc(w.born, func(k cacheaside.Key, _ struct{}) bool { return batch.Errs[k] == nil })
}
