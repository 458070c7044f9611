package rows

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/fetch"
)

// Warm loads the rows of keys that have no entry in Redis, or whose entry has less than half of its
// TTL left. It calls failed for the index of each key that could not be cached, and returns how
// many rows it had to load. The rows are known to exist: the filter is not asked for them.
func (r *Reader[K, V]) Warm(ctx context.Context, keys []K, failed func(int, error)) (loaded int) {
	missing, old := r.ahead(ctx, keys, failed)
	read := func(g *Group[K], places []int) {
		manyAt(ctx, g, keys, places, func(i int, got *fetch.Round) {
			if got.Unvalidated {
				failed(i, ErrNotStored)
			}
		}, failed)
	}
	read(r.Groups.Unfiltered, missing)
	read(r.Groups.Refreshes, old)
	return len(missing) + len(old)
}

// ahead returns the places of keys that have no entry in Redis, and the places of those whose entry
// has less than half of its TTL left. It calls failed for keys that could not be looked up.
func (r *Reader[K, V]) ahead(ctx context.Context, keys []K, failed func(int, error)) (missing, old []int) {
	if r.cache.Store == nil || r.Bypassed() || r.Closed() {
		for i := range keys {
			old = append(old, i)
		}
		return nil, old
	}
	rounds, place := make([]*fetch.Round, len(keys)), make(map[*fetch.Round]int, len(keys))
	for i, key := range keys {
		rounds[i] = Lone(key)
		place[rounds[i]] = i
	}
	none, short := r.Fetch.Ahead(ctx, rounds)
	for i, of := range rounds {
		if of.Err != nil {
			failed(i, of.Err)
		}
	}
	for _, of := range none {
		missing = append(missing, place[of])
	}
	for _, of := range short {
		old = append(old, place[of])
	}
	return missing, old
}
