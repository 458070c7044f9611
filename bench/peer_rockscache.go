package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/dtm-labs/rockscache"
	"github.com/redis/go-redis/v9"
)

// rockscache stores rows in Redis only, each in a hash with the lock of the caller that loads it.
// An invalidation marks the row. StrongConsistency is on: its README recommends it for "strongly
// consistent access", and cacheaside promises the same. All other settings are the defaults,
// except Delay, which is how long a mark stays. rockscache subtracts Delay from the TTL of a row,
// in whole seconds, and with a short TTL nothing would be left:
// https://github.com/dtm-labs/rockscache/blob/v0.1.1/README.md. It has some features that
// cacheaside lacks: switches that turn reads and deletions off, a lock that a writer can hold on
// a row (LockForUpdate).
func init() {
	register(Peer{
		Name: "rockscache", Module: "github.com/dtm-labs/rockscache", Redis: true, Nulls: true,
		Settings: "StrongConsistency, Delay at most a quarter of the TTL",
		Has:      "switches that turn reads and deletions off, a lock on a row for writers",
		Open: func(c Config) (Cache, error) {
			ttl := cmp.Or(c.TTL, time.Hour)
			o := rockscache.NewDefaultOptions()
			o.StrongConsistency = true
			o.Delay = min(o.Delay, ttl/4)
			o.EmptyExpire = cmp.Or(c.NullTTL, o.EmptyExpire)
			if c.Patient {
				o.LockExpire = 30 * time.Second
			}
			rdb := newClient(c)
			return &rocks{rdb, rockscache.NewClient(rdb, o), ttl, c}, nil
		},
	})
}

type rocks struct {
	rdb    redis.UniversalClient
	cache  *rockscache.Client
	ttl    time.Duration
	config Config
}

func (r *rocks) Get(ctx context.Context, key string) (*Row, error) {
	s, err := r.cache.Fetch2(ctx, "rocks:"+key, r.ttl, func() (string, error) {
		v, err := r.config.Load(ctx, key)
		if errors.Is(err, ErrNotFound) {
			return "", nil // rockscache's convention for a missing row
		}
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(v)
		return string(b), err
	})
	if err != nil {
		return nil, err
	}
	if s == "" {
		return nil, ErrNotFound
	}
	v := new(Row)
	return v, json.Unmarshal([]byte(s), v)
}

func (r *rocks) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = "rocks:" + key
	}
	texts, err := r.cache.FetchBatch2(ctx, names, r.ttl, func(missing []int) (map[int]string, error) {
		ask := make([]string, len(missing))
		for i, position := range missing {
			ask[i] = keys[position]
		}
		rows, err := r.config.loadMany(ctx, ask)
		if err != nil {
			return nil, err
		}
		out := make(map[int]string, len(rows))
		for i, position := range missing {
			if v := rows[ask[i]]; v != nil {
				b, err := json.Marshal(v)
				if err != nil {
					return nil, err
				}
				out[position] = string(b)
			}
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	found := make(map[string]*Row, len(keys))
	for i, s := range texts {
		if s == "" {
			continue
		}
		v := new(Row)
		if err := json.Unmarshal([]byte(s), v); err != nil {
			return nil, err
		}
		found[keys[i]] = v
	}
	return found, nil
}

func (r *rocks) Invalidate(ctx context.Context, key string) error {
	return r.cache.TagAsDeleted2(ctx, "rocks:"+key)
}

func (r *rocks) Close() error { return r.rdb.Close() }
