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
		Name: "raw go-redis", Module: "github.com/redis/go-redis/v9", Settings: "GET, encoding/json, SET", Floor: true, Redis: true,
		Open: func(c Config) (Cache, error) {
			rdb := redis.NewClient(&redis.Options{Addr: c.Redis, ContextTimeoutEnabled: true})
			return &rawRedis{rdb, rdb, c}, nil
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

// getter is what a plain client and an AutoPipeline have in common.
type getter interface {
	Get(ctx context.Context, key string) *redis.StringCmd
}

// rawRedis is what a team writes first: no protection of any kind.
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
