package bench

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

func init() {
	register(Peer{
		Name:     own,
		Module:   "github.com/cacheaside/cacheaside",
		Settings: "defaults; the client with ContextTimeoutEnabled, according to the README",
		Memory:   true,
		Nulls:    true,
		Stale:    true,
		Groups:   true,
		Notifies: true,
		Redis:    true,
		Cluster:  true,
		Open:     openCacheaside,
	})
}

type ownCache struct {
	rdb    redis.UniversalClient
	cache  *cacheaside.Cache
	loader *cacheaside.Loader[string, *Row]

	grouped bool
}

// newOwnClient returns a client without Patient's timeouts: the options of the cache limit all
// waits for Redis.
func newOwnClient(c Config) redis.UniversalClient {
	c.Patient = false
	return newClient(c)
}

func openCacheaside(c Config) (Cache, error) { return openOwn(c, nil) }

// openOwn opens cacheaside with a filter of keys that exist. nil: without a filter.
func openOwn(c Config, filter cacheaside.Filter) (Cache, error) {
	rdb := newOwnClient(c)
	o := cacheaside.Options{MemoryBytes: c.MemoryBytes}
	if c.NoMemory {
		o.MemoryBytes = -1
	}
	if c.Patient {
		o.RedisTimeout, o.ReadTimeout, o.LeaseTTL, o.MaxStaleness =
			10*time.Second, 10*time.Second, 30*time.Second, 30*time.Second
	}
	cache, err := cacheaside.New(rdb, &o)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	lo := &cacheaside.LoaderOptions{TTL: c.TTL, NullTTL: c.NullTTL, MemoryTTL: c.MemoryTTL, Filter: filter}
	if c.Grouped {
		lo.Groups = cacheaside.GroupsOf(func(key string, _ *Row) []string { return []string{groupOf(key)} })
	}
	var loader *cacheaside.Loader[string, *Row]
	if c.LoadMany != nil {
		loader, err = cacheaside.NewBatchLoader(cache, "row", c.LoadMany, lo)
	} else {
		loader, err = cacheaside.NewLoader(cache, "row", func(ctx context.Context, key string) (*Row, error) {
			r, err := c.Load(ctx, key)
			if errors.Is(err, ErrNotFound) {
				err = cacheaside.ErrNotFound
			}
			return r, err
		}, lo)
	}
	if err != nil {
		return nil, errors.Join(err, cache.Close(), rdb.Close())
	}
	return &ownCache{rdb, cache, loader, c.Grouped}, nil
}

func (o *ownCache) Get(ctx context.Context, key string) (*Row, error) {
	r, err := o.loader.Get(ctx, key)
	if err != nil && errors.Is(err, cacheaside.ErrNotFound) {
		err = ErrNotFound
	}
	return r, err
}

func (o *ownCache) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	return o.loader.GetMany(ctx, keys)
}

func (o *ownCache) Invalidate(ctx context.Context, key string) error {
	if o.grouped {
		return o.loader.InvalidateGroup(ctx, groupOf(key))
	}
	return o.loader.Invalidate(ctx, key)
}

func (o *ownCache) Close() error { return errors.Join(o.cache.Close(), o.rdb.Close()) }
