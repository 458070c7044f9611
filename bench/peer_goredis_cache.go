package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
)

// go-redis/cache has two tiers and singleflight. The settings are those of "advancedUsage" in its
// README: Once, and TinyLFU in memory, where a row stays a minute:
// https://github.com/go-redis/cache/blob/v9.0.0/README.md. The library does not cache the absence
// of a row, has no batch read, and does not notify other processes. It has some features that
// cacheaside lacks: msgpack and compression, if no codec is set. Here one is set.
func init() {
	register(Peer{
		Name: "go-redis/cache", Module: "github.com/go-redis/cache/v9", Memory: true, Redis: true, Cluster: true,
		Settings: "Once, TinyLFU and Redis, JSON",
		Has:      "msgpack with compression",
		Open: func(c Config) (Cache, error) {
			rdb := newClient(c)
			o := &cache.Options{Redis: rdb, Marshal: json.Marshal, Unmarshal: json.Unmarshal}
			if !c.NoMemory {
				o.LocalCache = cache.NewTinyLFU(cmp.Or(c.MemoryRows, 100_000), cmp.Or(c.MemoryTTL, time.Minute))
			}
			return &redisCache{rdb, cache.New(o), c}, nil
		},
	})
}

type redisCache struct {
	rdb    redis.UniversalClient
	cache  *cache.Cache
	config Config
}

func (r *redisCache) Get(ctx context.Context, key string) (*Row, error) {
	v := new(Row)
	err := r.cache.Once(&cache.Item{Ctx: ctx, Key: "cache:" + key, Value: v, TTL: r.config.TTL,
		Do: func(i *cache.Item) (any, error) {
			return r.config.Load(i.Ctx, key)
		}})
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (r *redisCache) Invalidate(ctx context.Context, key string) error {
	return r.cache.Delete(ctx, "cache:"+key)
}

func (r *redisCache) Close() error { return r.rdb.Close() }
