package bench

import (
	"context"
	"errors"
	"time"

	"github.com/maypok86/otter/v2"
)

func init() {
	register(Peer{
		Name: "otter", Module: "github.com/maypok86/otter/v2", Settings: "loading Get, expiry after writing",
		Memory: true,
		Has:    "expiry after reading, Compute in one step, saving to a file",
		Open: func(c Config) (Cache, error) {
			rows := c.MemoryRows
			if rows == 0 {
				rows = 100_000
			}
			ttl := c.TTL
			if ttl == 0 {
				ttl = time.Hour
			}
			o, err := otter.New(&otter.Options[string, *Row]{MaximumSize: rows,
				ExpiryCalculator: otter.ExpiryWriting[string, *Row](ttl)})
			if err != nil {
				return nil, err
			}
			return &otterCache{o, otter.LoaderFunc[string, *Row](func(ctx context.Context, key string) (*Row, error) {
				r, err := c.Load(ctx, key)
				if errors.Is(err, ErrNotFound) {
					err = otter.ErrNotFound
				}
				return r, err
			})}, nil
		},
	})
}

type otterCache struct {
	cache *otter.Cache[string, *Row]
	load  otter.Loader[string, *Row]
}

func (o *otterCache) Get(ctx context.Context, key string) (*Row, error) {
	r, err := o.cache.Get(ctx, key, o.load)
	if errors.Is(err, otter.ErrNotFound) {
		err = ErrNotFound
	}
	return r, err
}

func (o *otterCache) Invalidate(_ context.Context, key string) error {
	o.cache.Invalidate(key)
	return nil
}

func (o *otterCache) Close() error {
	o.cache.StopAllGoroutines()
	return nil
}
