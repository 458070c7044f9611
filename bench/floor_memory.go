package bench

import (
	"cmp"
	"context"
	"time"

	"github.com/dgraph-io/ristretto/v2"
)

func init() {
	register(Peer{
		Name: "raw ristretto", Module: "github.com/dgraph-io/ristretto/v2", Settings: "SetWithTTL, Get", Floor: true,
		Memory: true,
		Open: func(c Config) (Cache, error) {
			r, err := ristretto.NewCache(&ristretto.Config[string, *Row]{NumCounters: 1_000_000, MaxCost: 64 << 20,
				BufferItems: 64})
			return &rawRistretto{r, c}, err
		},
	})
}

// rawRistretto is a bounded map: it does not share loads or notify other processes.
type rawRistretto struct {
	cache  *ristretto.Cache[string, *Row]
	config Config
}

func (r *rawRistretto) Get(ctx context.Context, key string) (*Row, error) {
	if v, ok := r.cache.Get(key); ok {
		return v, nil
	}
	v, err := r.config.Load(ctx, key)
	if err == nil {
		r.cache.SetWithTTL(key, v, 300, cmp.Or(r.config.TTL, time.Hour))
	}
	return v, err
}

func (r *rawRistretto) Close() error { r.cache.Close(); return nil }
