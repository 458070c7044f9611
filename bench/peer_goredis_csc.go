package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// go-redis, the client, can cache the replies of reading commands in memory until the server
// notifies it of a change (CLIENT TRACKING). The settings are those of "Client-side caching" in its
// README, and ClientSideCacheCoalesceMisses, which the release notes of 9.23 recommend for
// concurrent misses: https://github.com/redis/go-redis/blob/v9.23.0/README.md#client-side-caching.
// It makes misses faster from 16 goroutines on, and slower for fewer.
// MaxEntries is that of the other peers, and MaxStaleness is the TTL of a row in memory. It is not
// a cache-aside library: the load, shared by x/sync/singleflight, and the SET are written here, as
// its users write them. So a row that was loaded before an Invalidate can be stored after it. It
// cannot be used on a cluster. A batch is an MGET, which it caches as one reply for that list of
// keys, and which cannot use replies of GET. It has some features that cacheaside lacks: it caches
// the replies of many other reading commands, and a write to Redis by any client invalidates them.
func init() {
	register(Peer{
		Name: "go-redis client-side", Module: "github.com/redis/go-redis/v9", Memory: true, Redis: true, Notifies: true,
		Later: true,
		Settings: "ClientSideCacheConfig, ClientSideCacheCoalesceMisses (faster from 16 goroutines on, slower for " +
			"fewer), the load and SET written by hand with singleflight, JSON",
		Has: "replies of many reading commands cached in memory, invalidated by a write to Redis by any client",
		Open: func(c Config) (Cache, error) {
			o := clientOptions(c)
			o.Protocol = 3
			if !c.NoMemory {
				config := &redis.ClientSideCacheConfig{MaxEntries: cmp.Or(c.MemoryRows, 100_000),
					MaxStaleness: cmp.Or(c.MemoryTTL, time.Minute)}
				if c.MemoryBytes > 0 {
					config.MaxEntries, config.MaxMemoryBytes = 0, c.MemoryBytes
				}
				o.ClientSideCacheConfig, o.ClientSideCacheCoalesceMisses = config, true
			}
			return &clientSide{rdb: redis.NewClient(o), config: c}, nil
		},
	})
}

type clientSide struct {
	rdb    *redis.Client
	config Config
	loads  singleflight.Group
}

func (c *clientSide) Get(ctx context.Context, key string) (*Row, error) {
	b, err := c.rdb.Get(ctx, "tracked:"+key).Bytes()
	if err == nil {
		r := new(Row)
		return r, json.Unmarshal(b, r)
	}
	if !errors.Is(err, redis.Nil) {
		return nil, err
	}
	v, err, _ := c.loads.Do(key, func() (any, error) {
		r, err := c.config.Load(ctx, key)
		if err != nil {
			return nil, err
		}
		if b, err = json.Marshal(r); err != nil {
			return nil, err
		}
		return r, c.rdb.Set(ctx, "tracked:"+key, b, cmp.Or(c.config.TTL, time.Hour)).Err()
	})
	if err != nil {
		return nil, err
	}
	return v.(*Row), nil
}

func (c *clientSide) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = "tracked:" + key
	}
	values, err := getMany(ctx, c.rdb, names)
	if err != nil {
		return nil, err
	}
	found := make(map[string]*Row, len(keys))
	var missing []string
	for i, key := range keys {
		if values[i] == nil {
			missing = append(missing, key)
			continue
		}
		r := new(Row)
		if err := json.Unmarshal(values[i], r); err != nil {
			return nil, err
		}
		found[key] = r
	}
	if len(missing) == 0 {
		return found, nil
	}
	loaded, err := c.config.loadMany(ctx, missing)
	if err != nil {
		return nil, err
	}
	maps.Copy(found, loaded)
	_, err = c.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for key, r := range loaded {
			b, err := json.Marshal(r)
			if err != nil {
				return err
			}
			p.Set(ctx, "tracked:"+key, b, cmp.Or(c.config.TTL, time.Hour))
		}
		return nil
	})
	return found, err
}

func (c *clientSide) Invalidate(ctx context.Context, key string) error {
	return c.rdb.Del(ctx, "tracked:"+key).Err()
}

func (c *clientSide) Close() error { return c.rdb.Close() }
