package bench

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// newClient returns a client for all peers that use go-redis. They have the same client settings,
// so these cause no differences between them.
func newClient(c Config) *redis.Client {
	o := &redis.Options{Addr: c.Redis, ContextTimeoutEnabled: true}
	if c.Patient {
		o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 10*time.Second, 10*time.Second, 20*time.Second
	}
	return redis.NewClient(o)
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
