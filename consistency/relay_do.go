package consistency

import (
	"context"
	"errors"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
)

// do invalidates, or reloads, the keys of items, and answers for each why it is not done.
func (r *Relay) do(ctx context.Context, items []Item) []error {
	errs := make([]error, len(items))
	keys := map[bool]map[cacheaside.Key]struct{}{false: {}, true: {}} // by Item.Reload; one key may be in many items
	for i, item := range items {
		if errs[i] = item.Key.Check(); errs[i] == nil {
			keys[item.Reload][item.Key] = struct{}{}
		}
	}
	left := map[bool]map[cacheaside.Key]error{
		false: guarded(ctx, slices.Collect(maps.Keys(keys[false])), r.invalidate),
		true:  guarded(ctx, slices.Collect(maps.Keys(keys[true])), r.reload),
	}
	for i, item := range items {
		if errs[i] == nil {
			errs[i] = left[item.Reload][item.Key]
		}
	}
	return errs
}

// guarded does what may panic, as users' filters, and loads, may: then no key is done.
func guarded(ctx context.Context, keys []cacheaside.Key, do func(context.Context, []cacheaside.Key) map[cacheaside.Key]error) (left map[cacheaside.Key]error) {
	if len(keys) == 0 {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			left = leftOf(keys, &cacheaside.PanicError{Value: p, Stack: debug.Stack()})
		}
	}()
	return do(ctx, keys)
}

func (r *Relay) invalidate(ctx context.Context, keys []cacheaside.Key) map[cacheaside.Key]error {
	return invalidate(ctx, r.cache, keys)
}

// reload answers which keys are neither reloaded nor invalidated, or not in their filters, and why. As their rows have been committed, to be admitted is all that their filters need.
func (r *Relay) reload(ctx context.Context, keys []cacheaside.Key) map[cacheaside.Key]error {
	_, _, refused := admit(ctx, r.cache.AdmitKeys, keys)
	deadline, _ := ctx.Deadline()
	loading, cancel := context.WithDeadline(ctx, time.Now().Add(time.Until(deadline)/2)) // so that there is time for what cannot be reloaded
	left := leftOf(keys, r.cache.RefreshKeys(loading, keys...))
	cancel()
	var stale []cacheaside.Key
	for k, err := range left {
		if !errors.Is(err, cacheaside.ErrRedis) && !errors.Is(err, cacheaside.ErrClosed) && ctx.Err() == nil {
			stale = append(stale, k)
		}
	}
	if len(stale) > 0 {
		r.counters.notReloaded.Add(int64(len(stale)))
		still := leftOf(stale, r.cache.InvalidateKeys(ctx, stale...))
		for _, k := range stale {
			if still[k] == nil {
				delete(left, k)
			} else {
				left[k] = still[k]
			}
		}
	}
	for k, err := range refused {
		left[k] = errors.Join(err, left[k])
	}
	return left
}
