//go:build accept

package bench

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/core/stores/cache"
	"github.com/zeromicro/go-zero/core/stores/redis"
	"github.com/zeromicro/go-zero/core/syncx"
)

// go-zero's cache stores rows in Redis only. TakeCtx shares loads in the process, caches the
// absence of a row, and varies the TTLs by a twentieth. go-zero's generated models use the same
// calls and defaults: https://go-zero.dev/docs/tutorials/mysql/cache and
// core/stores/cache/cachenode.go of v1.10.3. When Redis fails, it returns the error and does not
// query the database, to protect it from the load. It creates its own clients, one per address
// and process, closes none of them, and has no options for their pools and timeouts: Patient has
// no effect. It has some features that cacheaside lacks: it spreads keys over several Redis
// servers by weight, and retries failed deletions for an hour (from memory).
func init() {
	register(Peer{
		Name: "go-zero", Module: "github.com/zeromicro/go-zero", Redis: true, Nulls: true, Cluster: true,
		Settings: "TakeCtx, defaults, DisableIdentity; its log off",
		Has:      "keys spread over several servers by weight, failed deletions tried again from memory",
		Open: func(c Config) (Cache, error) {
			// The defaults of its config loader, and DisableIdentity, which RedisConf's comment
			// recommends for servers older than 7.2. Otherwise their error for CLIENT SETINFO on
			// each new connection opens the circuit breaker, and Get fails although Redis is
			// healthy.
			conf := redis.RedisConf{Host: c.Redis, Type: redis.NodeType, NonBlock: true, Protocol: 3,
				MaintNotifications: "disabled", DisableIdentity: true}
			if len(c.Cluster) > 0 {
				conf.Host, conf.Type = strings.Join(c.Cluster, ","), redis.ClusterType
			}
			node := cache.New(cache.ClusterConf{{RedisConf: conf, Weight: 100}}, syncx.NewSingleFlight(), zeroStat(),
				ErrNotFound,
				cache.WithExpiry(c.TTL), cache.WithNotFoundExpiry(c.NullTTL))
			return &zero{node, c}, nil
		},
	})
}

// zeroStat is shared by all caches, as in go-zero's models, because each Stat has a goroutine that
// never ends.
var zeroStat = sync.OnceValue(func() *cache.Stat {
	logx.Disable()
	return cache.NewStat("bench")
})

type zero struct {
	cache  cache.Cache
	config Config
}

func (z *zero) Get(ctx context.Context, key string) (*Row, error) {
	r := new(Row)
	err := z.cache.TakeCtx(ctx, r, "zero:"+key, func(v any) error {
		loaded, err := z.config.Load(ctx, key)
		if err == nil {
			*v.(*Row) = *loaded
		}
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return nil, ErrNotFound
	}
	return r, err
}

func (z *zero) Invalidate(ctx context.Context, key string) error {
	return z.cache.DelCtx(ctx, "zero:"+key)
}

func (z *zero) Close() error { return nil }
