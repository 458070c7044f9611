//go:build accept

package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/eko/gocache/lib/v4/cache"
	"github.com/eko/gocache/lib/v4/store"
	redisstore "github.com/eko/gocache/store/redis/v4"
	memorystore "github.com/eko/gocache/store/ristretto/v4"
	"github.com/redis/go-redis/v9"
)

// gocache combines caches. This peer is its README's "loadable cache" over its "chained cache" of
// ristretto and Redis, which shares loads in the process:
// https://github.com/eko/gocache/blob/master/README.md. The default expiry of each store is the
// TTL of its tier. A row from Redis stays in memory for the rest of its TTL in Redis. gocache's
// marshaler only supports msgpack and is not used: the chain holds JSON text, which is decoded at
// each hit. It does not cache the absence of a row. It has some features that cacheaside lacks:
// many kinds of store, tags to invalidate many keys at once, metrics for Prometheus.
//
// It stores values in the background: an Invalidate soon after a load may come before the loaded
// row is stored. Delete returns no errors of the stores.
func init() {
	register(Peer{
		Name: "gocache", Module: "github.com/eko/gocache/lib/v4", Memory: true, Redis: true, Groups: true,
		Settings: "loadable over a chain of ristretto and Redis, JSON",
		Has:      "many kinds of store, tags that span kinds of values, metrics for Prometheus",
		Open:     openGocache,
	})
}

type chained struct {
	rdb    redis.UniversalClient
	memory *ristretto.Cache[string, any]
	cache  *cache.LoadableCache[string]

	grouped bool
}

func openGocache(c Config) (Cache, error) {
	g := &chained{rdb: newClient(c), grouped: c.Grouped}
	ttl := cmp.Or(c.TTL, time.Hour)
	var tiers cache.CacheInterface[string]
	inRedis := cache.New[string](redisstore.NewRedis(g.rdb, store.WithExpiration(ttl)))
	if c.NoMemory {
		tiers = inRedis
	} else {
		budget, cost := cmp.Or(c.MemoryBytes, 64<<20), int64(300)
		if c.MemoryBytes > 0 && c.MemoryRows > 0 {
			cost = c.MemoryBytes / int64(c.MemoryRows)
		}
		var err error
		g.memory, err = ristretto.NewCache(&ristretto.Config[string, any]{NumCounters: 1_000_000, MaxCost: budget,
			BufferItems: 64})
		if err != nil {
			return nil, err
		}
		inMemory := memorystore.NewRistretto(anyKeys{g.memory}, store.WithExpiration(cmp.Or(c.MemoryTTL, ttl)),
			store.WithCost(cost))
		tiers = cache.NewChain[string](cache.New[string](inMemory), inRedis)
	}
	g.cache = cache.NewLoadable(func(ctx context.Context, key any) (string, []store.Option, error) {
		r, err := c.Load(ctx, key.(string)[len("gocache:"):])
		if err != nil {
			return "", nil, err
		}
		b, err := json.Marshal(r)
		var options []store.Option
		if c.Grouped {
			options = append(options, store.WithTags([]string{groupOf(key.(string)[len("gocache:"):])}))
		}
		return string(b), options, err
	}, tiers)
	return g, nil
}

func (c *chained) Get(ctx context.Context, key string) (*Row, error) {
	text, err := c.cache.Get(ctx, "gocache:"+key)
	if err != nil {
		return nil, err
	}
	r := new(Row)
	return r, json.Unmarshal([]byte(text), r)
}

func (c *chained) Invalidate(ctx context.Context, key string) error {
	if c.grouped {
		return c.cache.Invalidate(ctx, store.WithInvalidateTags([]string{groupOf(key)}))
	}
	return c.cache.Delete(ctx, "gocache:"+key)
}

func (c *chained) Close() error {
	err := c.cache.Close()
	if c.memory != nil {
		c.memory.Close()
	}
	return errors.Join(err, c.rdb.Close())
}

// anyKeys adapts ristretto to gocache's store, which was written for a version without type
// parameters.
type anyKeys struct{ *ristretto.Cache[string, any] }

func (a anyKeys) Get(key any) (any, bool)              { return a.Cache.Get(key.(string)) }
func (a anyKeys) GetTTL(key any) (time.Duration, bool) { return a.Cache.GetTTL(key.(string)) }
func (a anyKeys) Del(key any)                          { a.Cache.Del(key.(string)) }
func (a anyKeys) SetWithTTL(key, value any, cost int64, ttl time.Duration) bool {
	return a.Cache.SetWithTTL(key.(string), value, cost, ttl)
}
