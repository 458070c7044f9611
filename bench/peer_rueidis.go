//go:build accept

package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/bits"
	"runtime"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/singleflight"
)

// rueidis is a Redis client that caches replies in memory until the server notifies it of a change.
// The settings are those of "Client-Side Caching" in its README: DoCache and the opt-in mode, which
// is the default: https://github.com/redis/rueidis/blob/v1.0.79/README.md. It is not a cache-aside
// library: the load, shared by x/sync/singleflight, and the SET are written here, as its users
// write them. So a row that was loaded before an Invalidate can be stored after it. It has some
// features that cacheaside lacks: it caches the replies of all reading commands in memory, and a
// write to Redis by any client invalidates them.
func init() {
	register(Peer{
		Name: "rueidis", Module: "github.com/redis/rueidis", Memory: true, Redis: true, Notifies: true, Later: true,
		Cluster:  true,
		Settings: "DoCache (client-side caching, opt-in), the load and SET written by hand with singleflight, JSON",
		Has:      "replies of all reading commands cached in memory, invalidated by a write to Redis by any client",
		Open: func(c Config) (Cache, error) {
			client, err := newRueidis(c)
			return &aside{client: client, config: c}, err
		},
	})
	register(Peer{
		Name: "raw rueidis", Module: "github.com/redis/rueidis", Settings: "GET, encoding/json, SET", Floor: true,
		Redis: true, Cluster: true,
		Open: func(c Config) (Cache, error) {
			c.NoMemory = true
			client, err := newRueidis(c)
			return &rawRueidis{&aside{client: client, config: c}}, err
		},
	})
}

func newRueidis(c Config) (rueidis.Client, error) {
	// its default; each connection has its own cache
	connections := 1 << min(2, bits.Len(uint(runtime.GOMAXPROCS(0)))-1)
	o := rueidis.ClientOption{
		InitAddress: []string{c.Redis}, ForceSingleClient: true, DisableCache: c.NoMemory,
		CacheSizeEachConn: int(c.MemoryBytes) / connections,
	}
	if len(c.Cluster) > 0 {
		o.InitAddress, o.ForceSingleClient = c.Cluster, false
	}
	return rueidis.NewClient(o)
}

type aside struct {
	client rueidis.Client
	config Config
	loads  singleflight.Group
}

func (a *aside) read(ctx context.Context, key string) (*Row, error) {
	var reply rueidis.RedisResult
	if get := a.client.B().Get().Key("rueidis:" + key); a.config.NoMemory {
		reply = a.client.Do(ctx, get.Build())
	} else {
		reply = a.client.DoCache(ctx, get.Cache(), cmp.Or(a.config.MemoryTTL, time.Minute))
	}
	r := new(Row)
	return r, reply.DecodeJSON(r)
}

func (a *aside) Get(ctx context.Context, key string) (*Row, error) {
	if r, err := a.read(ctx, key); !rueidis.IsRedisNil(err) {
		return r, err
	}
	v, err, _ := a.loads.Do(key, func() (any, error) { return a.load(ctx, key) })
	if err != nil {
		return nil, err
	}
	return v.(*Row), nil
}

func (a *aside) load(ctx context.Context, key string) (*Row, error) {
	r, err := a.config.Load(ctx, key)
	if err != nil {
		return nil, err
	}
	set, err := a.set(key, r)
	if err != nil {
		return nil, err
	}
	return r, a.client.Do(ctx, set).Error()
}

func (a *aside) set(key string, r *Row) (rueidis.Completed, error) {
	b, err := json.Marshal(r)
	return a.client.B().Set().Key("rueidis:" + key).Value(rueidis.BinaryString(b)).Ex(cmp.Or(a.config.TTL,
		time.Hour)).Build(), err
}

func (a *aside) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = "rueidis:" + key
	}
	var replies map[string]rueidis.RedisMessage
	var err error
	if a.config.NoMemory {
		replies, err = rueidis.MGet(a.client, ctx, names)
	} else {
		replies, err = rueidis.MGetCache(a.client, ctx, cmp.Or(a.config.MemoryTTL, time.Minute), names)
	}
	if err != nil {
		return nil, err
	}
	found := make(map[string]*Row, len(keys))
	var missing []string
	for i, key := range keys {
		reply := replies[names[i]]
		if reply.IsNil() {
			missing = append(missing, key)
			continue
		}
		r := new(Row)
		if err := reply.DecodeJSON(r); err != nil {
			return nil, err
		}
		found[key] = r
	}
	if len(missing) == 0 {
		return found, nil
	}
	return found, a.loadMissing(ctx, missing, found)
}

func (a *aside) loadMissing(ctx context.Context, missing []string, found map[string]*Row) error {
	rows, err := a.config.loadMany(ctx, missing)
	if err != nil {
		return err
	}
	var sets rueidis.Commands
	for key, r := range rows {
		found[key] = r
		set, err := a.set(key, r)
		if err != nil {
			return err
		}
		sets = append(sets, set)
	}
	var failed []error
	for _, reply := range a.client.DoMulti(ctx, sets...) {
		failed = append(failed, reply.Error())
	}
	return errors.Join(failed...)
}

func (a *aside) Invalidate(ctx context.Context, key string) error {
	return a.client.Do(ctx, a.client.B().Del().Key("rueidis:"+key).Build()).Error()
}

func (a *aside) Close() error { a.client.Close(); return nil }

// rawRueidis is GET, JSON, SET: it does not share loads or invalidate rows.
type rawRueidis struct{ a *aside }

func (r *rawRueidis) Get(ctx context.Context, key string) (*Row, error) {
	if v, err := r.a.read(ctx, key); !rueidis.IsRedisNil(err) {
		return v, err
	}
	return r.a.load(ctx, key)
}

func (r *rawRueidis) Close() error { return r.a.Close() }
