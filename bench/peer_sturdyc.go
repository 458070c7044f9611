package bench

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

// sturdyc is a cache in memory that shares loads, refreshes rows early when they are read, and
// reads from a distributed storage before it loads. The user writes the storage, here over Redis.
// The settings are those of "Distributed storage early refreshes" in its README, and of the example
// of that name: 100,000 entries, 100 shards, a refresh after 2 to 4 s, and a caller waits for it
// after 30 s. Missing records are stored. The times are scaled down if the TTLs are shorter:
// https://github.com/viccon/sturdyc/blob/v1.1.5/README.md#distributed-storage-early-refreshes.
// Continuous evictions are off, because their goroutine would never end. sturdyc evicts when it is
// full. It has no call that invalidates a row everywhere: according to its README, the user manages
// the storage. So Invalidate deletes the key from Redis and then from this process's memory. It has
// some features that cacheaside lacks: refreshes of many keys in one batch, keys made from a
// struct, loads that always query the source and use the cache as a fallback.
func init() {
	register(Peer{
		Name: "sturdyc", Module: "github.com/viccon/sturdyc", Memory: true, Redis: true, Nulls: true, Cluster: true,
		Settings: "storage over Redis, early refreshes of both tiers, missing records stored",
		Has:      "refreshes gathered into batches, keys made of a struct, pass-through with fallback",
		Open: func(c Config) (Cache, error) {
			memoryTTL, ttl := cmp.Or(c.MemoryTTL, 5*time.Minute), cmp.Or(c.TTL, time.Hour)
			rows, shards, evict := cmp.Or(c.MemoryRows, 100_000), 100, 25
			if c.NoMemory {
				// according to its documentation, a full cache that evicts nothing stores nothing
				rows, shards, evict = 1, 2, 0
			}
			s := &sturdycStorage{newClient(c), ttl}
			return &sturdy{s, sturdyc.New[*Row](rows, shards, memoryTTL, evict,
				sturdyc.WithNoContinuousEvictions(),
				sturdyc.WithMissingRecordStorage(),
				sturdyc.WithEarlyRefreshes(min(2*time.Second, memoryTTL/4), min(4*time.Second, memoryTTL/2),
					min(30*time.Second, memoryTTL*3/4), min(5*time.Second, memoryTTL/4)),
				sturdyc.WithDistributedStorageEarlyRefreshes(s, min(time.Minute, ttl/2)),
				sturdyc.WithLog(&sturdyc.NoopLogger{}),
			), c}, nil
		},
	})
}

type sturdy struct {
	storage *sturdycStorage
	cache   *sturdyc.Client[*Row]
	config  Config
}

func sturdycKey(key string) string { return "sturdyc:" + key }

func (s *sturdy) Get(ctx context.Context, key string) (*Row, error) {
	r, err := s.cache.GetOrFetch(ctx, sturdycKey(key), func(ctx context.Context) (*Row, error) {
		r, err := s.config.Load(ctx, key)
		if errors.Is(err, ErrNotFound) {
			err = sturdyc.ErrNotFound
		}
		return r, err
	})
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, sturdyc.ErrMissingRecord), errors.Is(err, sturdyc.ErrNotFound):
		return nil, ErrNotFound
	case errors.Is(err, sturdyc.ErrOnlyCachedRecords) && r != nil:
		return r, nil // the load has failed; the caller may choose to use the old row
	default:
		return nil, err
	}
}

func (s *sturdy) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	found, err := s.cache.GetOrFetchBatch(ctx, keys, sturdycKey, s.config.loadMany)
	return found, err
}

func (s *sturdy) Invalidate(ctx context.Context, key string) error {
	err := s.storage.rdb.Del(ctx, sturdycKey(key)).Err()
	s.cache.Delete(sturdycKey(key))
	return err
}

func (s *sturdy) Close() error { return s.storage.rdb.Close() }

// sturdycStorage is the storage that sturdyc's user must write. Its methods cannot return errors.
type sturdycStorage struct {
	rdb redis.UniversalClient
	ttl time.Duration
}

func (s *sturdycStorage) Get(ctx context.Context, key string) ([]byte, bool) {
	b, err := s.rdb.Get(ctx, key).Bytes()
	return b, err == nil
}

func (s *sturdycStorage) Set(ctx context.Context, key string, value []byte) {
	s.rdb.Set(ctx, key, value, s.ttl)
}

func (s *sturdycStorage) GetBatch(ctx context.Context, keys []string) map[string][]byte {
	values, err := getMany(ctx, s.rdb, keys)
	if err != nil {
		return nil
	}
	found := make(map[string][]byte, len(keys))
	for i, b := range values {
		if b != nil {
			found[keys[i]] = b
		}
	}
	return found
}

func (s *sturdycStorage) SetBatch(ctx context.Context, records map[string][]byte) {
	_, _ = s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for key, value := range records {
			p.Set(ctx, key, value, s.ttl)
		}
		return nil
	})
}

func (s *sturdycStorage) Delete(ctx context.Context, key string) { s.rdb.Del(ctx, key) }

func (s *sturdycStorage) DeleteBatch(ctx context.Context, keys []string) { s.rdb.Del(ctx, keys...) }
