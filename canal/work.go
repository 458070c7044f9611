package canal

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cacheaside/cacheaside"
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
	Parked
	cause error
}

// target is the filter of a Binding.
type target struct{ Filter }

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

// try does what is left of the work. What it returns an error for is left, and may be tried again.
func (w *work) try(ctx context.Context, cache *cacheaside.Cache) error {
	return errors.Join(w.tryFilters(ctx), w.tryKeys(ctx, cache))
}

func (w *work) tryFilters(ctx context.Context) error {
	var errs []error
	for f, a := range w.filters {
		if len(a.keys) > 0 {
			committed, err := f.Admit(ctx, slices.Collect(maps.Keys(a.keys)))
			if err == nil && committed != nil {
				err = committed(ctx)
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			a.keys = nil
		}
		if a.deleted > 0 {
			if err := f.Deleted(ctx, a.deleted); err != nil {
				errs = append(errs, err)
				continue
			}
			a.deleted = 0
		}
	}
	return errors.Join(errs...)
}

// tryKeys has filters admit before anything is invalidated, as a row's absence may be cached until then. What a filter refuses is invalidated all the same; it, and what was to be admitted with it, is tried again.
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
	committed, err := cache.AdmitKeys(ctx, keys...)
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
