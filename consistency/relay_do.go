package consistency

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cacheaside/cacheaside"
)

// do invalidates, or reloads, the keys of a group, and says for each task why it is not done.
func (r *Relay) do(ctx context.Context, g *group, errs []error) {
	keys := map[bool]map[cacheaside.Key]struct{}{false: {}, true: {}} // by Item.Reload; one key may be in many items
	for i, t := range g.tasks {
		if errs[i] = t.Key.Check(); errs[i] == nil {
			keys[t.Reload && !g.forgets][t.Key] = struct{}{}
		}
	}
	stale, reloaded := slices.Collect(maps.Keys(keys[false])), slices.Collect(maps.Keys(keys[true]))
	left := map[bool]map[cacheaside.Key]error{}
	switch {
	case len(stale) == 0:
	case g.forgets:
		left[false] = leftOf(stale, r.cache.InvalidateKeys(ctx, stale...))
	default:
		left[false] = invalidate(ctx, r.cache, stale)
	}
	if len(reloaded) > 0 {
		left[true] = r.reload(ctx, reloaded)
	}
	for i, t := range g.tasks {
		if errs[i] == nil {
			errs[i] = left[t.Reload && !g.forgets][t.Key]
		}
	}
}

// reload answers which keys are neither reloaded nor invalidated, or not in their filters, and why.
// As their rows have been committed, to be admitted is all that their filters need.
func (r *Relay) reload(ctx context.Context, keys []cacheaside.Key) map[cacheaside.Key]error {
	admitting, cancel := half(ctx)
	_, _, refused := admit(admitting, r.cache.InsertingKeys, keys)
	cancel()
	loading, cancel := half(ctx) // so that there is time for what cannot be reloaded
	left := leftOf(keys, r.cache.RefreshKeys(loading, keys...))
	late := loading.Err() != nil // what came after the load had no time
	cancel()
	var stale []cacheaside.Key
	for k, err := range left {
		if (late || !errors.Is(err, cacheaside.ErrRedis)) && ctx.Err() == nil {
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
