package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

func init() {
	register(Peer{
		Name: "raw go-redis", Module: "github.com/redis/go-redis/v9", Settings: "GET, encoding/json, SET; a batch: MGET, a pipeline of SET", Floor: true, Redis: true,
		Open: func(c Config) (Cache, error) {
			rdb := redis.NewClient(&redis.Options{Addr: c.Redis, ContextTimeoutEnabled: true})
			return &rawBatch{rawRedis{rdb, rdb, c}}, nil
		},
	})
	register(Peer{
		Name: "raw AutoPipeline", Module: "github.com/redis/go-redis/v9", Settings: "GET by AutoPipeline, encoding/json, SET", Floor: true, Redis: true,
		Open: func(c Config) (Cache, error) {
			rdb := redis.NewClient(&redis.Options{Addr: c.Redis, ContextTimeoutEnabled: true})
			p, err := rdb.AutoPipeline()
			if err != nil {
				return nil, err
			}
			return &rawRedis{rdb, p, c}, nil
		},
	})
}

// A getter is a plain client or an AutoPipeline.
type getter interface {
	Get(ctx context.Context, key string) *redis.StringCmd
}

// rawRedis is the simplest cache, without any protection.
type rawRedis struct {
	rdb    *redis.Client
	get    getter
	config Config
}

func (r *rawRedis) Get(ctx context.Context, key string) (*Row, error) {
	b, err := r.get.Get(ctx, "raw:"+key).Bytes()
	if err == nil {
		v := new(Row)
		return v, json.Unmarshal(b, v)
	}
	if !errors.Is(err, redis.Nil) {
		return nil, err
	}
	v, err := r.config.Load(ctx, key)
	if err != nil {
		return nil, err
	}
	if b, err = json.Marshal(v); err != nil {
		return nil, err
	}
	return v, r.rdb.Set(ctx, "raw:"+key, b, cmp.Or(r.config.TTL, time.Minute)).Err()
}

func (r *rawRedis) Close() error { return r.rdb.Close() }

// rawBatch reads batches in two round trips.
type rawBatch struct{ rawRedis }

func (r *rawBatch) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = "raw:" + key
	}
	values, err := r.rdb.MGet(ctx, names...).Result()
	if err != nil {
		return nil, err
	}
	all := make(map[string]*Row, len(keys))
	var missing []string
	for i, v := range values {
		if text, ok := v.(string); ok {
			row := new(Row)
			if err := json.Unmarshal([]byte(text), row); err != nil {
				return nil, err
			}
			all[keys[i]] = row
		} else {
			missing = append(missing, keys[i])
		}
	}
	if len(missing) == 0 {
		return all, nil
	}
	loaded, err := r.loadMany(ctx, missing)
	if err != nil {
		return nil, err
	}
	_, err = r.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for key, row := range loaded {
			b, err := json.Marshal(row)
			if err != nil {
				return err
			}
			p.Set(ctx, "raw:"+key, b, max(r.config.TTL, time.Minute))
			all[key] = row
		}
		return nil
	})
	return all, err
}

func (r *rawBatch) loadMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	if r.config.LoadMany != nil {
		return r.config.LoadMany(ctx, keys)
	}
	found := make(map[string]*Row, len(keys))
	for _, key := range keys {
		row, err := r.config.Load(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if err == nil {
			found[key] = row
		}
	}
	return found, nil
}
