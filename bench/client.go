package bench

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// newClient returns a client for all peers that use go-redis. They have the same client settings,
// so these cause no differences between them.
func newClient(c Config) redis.UniversalClient {
	if len(c.Cluster) == 0 {
		return redis.NewClient(clientOptions(c))
	}
	o := &redis.ClusterOptions{Addrs: c.Cluster, ContextTimeoutEnabled: true}
	if c.Patient {
		o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 10*time.Second, 10*time.Second, 20*time.Second
	}
	return redis.NewClusterClient(o)
}

// clientOptions returns the settings of newClient for a single server.
func clientOptions(c Config) *redis.Options {
	o := &redis.Options{Addr: c.Redis, ContextTimeoutEnabled: true}
	if c.Patient {
		o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 10*time.Second, 10*time.Second, 20*time.Second
	}
	return o
}

// getMany reads keys in one round trip to each server. A missing key has a nil value.
func getMany(ctx context.Context, rdb redis.UniversalClient, keys []string) ([][]byte, error) {
	all := make([][]byte, len(keys))
	if _, cluster := rdb.(*redis.ClusterClient); !cluster {
		values, err := rdb.MGet(ctx, keys...).Result()
		if err != nil {
			return nil, err
		}
		for i, v := range values {
			if text, ok := v.(string); ok {
				all[i] = []byte(text)
			}
		}
		return all, nil
	}
	replies, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error { // MGET cannot cross slots
		for _, key := range keys {
			p.Get(ctx, key)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	for i, reply := range replies {
		b, err := reply.(*redis.StringCmd).Bytes()
		switch {
		case err == nil:
			all[i] = b
		case !errors.Is(err, redis.Nil):
			return nil, err
		}
	}
	return all, nil
}

// loadMany calls LoadMany, or Load for one key after the other.
func (c Config) loadMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	if c.LoadMany != nil {
		return c.LoadMany(ctx, keys)
	}
	found := make(map[string]*Row, len(keys))
	for _, key := range keys {
		r, err := c.Load(ctx, key)
		switch {
		case err == nil:
			found[key] = r
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	return found, nil
}
