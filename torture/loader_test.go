package torture

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// fleetLoader is a loader of a process, with its Cache.
type fleetLoader struct {
	*cacheaside.Loader[int, row]
	cache *cacheaside.Cache
}

func newFleetLoader(
	rdb redis.UniversalClient, c *config, load func(context.Context, int) (row, error),
	options *cacheaside.LoaderOptions,
) (*fleetLoader, error) {
	l := &fleetLoader{}
	var err error
	if l.cache, err = cacheaside.New(rdb, c.cacheOptions()); err != nil {
		return nil, err
	}
	l.Loader, err = cacheaside.NewLoader(l.cache, "row", load, options)
	return l, err
}

// unvalidated counts the reads that Redis has not confirmed.
func (f *fleetLoader) unvalidated() int64 { return f.cache.Stats().Unvalidated }

// sums returns those Stats of a process that the table shows.
func (f *fleetLoader) sums() map[string]int64 {
	s := f.cache.Stats()
	return map[string]int64{
		"gets": s.Gets, "memory hits": s.MemoryHits, "redis hits": s.RedisHits, "loads": s.Loads, "loads left": s.LoadsLeft,
		"waits": s.Waits, "refused": s.Refused, "unvalidated": s.Unvalidated, "redis errors": s.RedisErrors, "outdated": s.Outdated,
		"abandoned": s.Abandoned, "invalidate errors": s.InvalidateErrors, "undecodable": s.Undecodable,
		"messages received": s.Bus.Received, "gaps": s.Bus.Gaps, "lapses": s.Bus.Lapses, "subscriptions": s.Bus.Subscribes,
		"malformed": s.Bus.Malformed, "polls failed": s.Bus.FailedPolls,
	}
}

func (f *fleetLoader) close() { f.cache.Close() }
