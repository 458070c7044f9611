package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The floors of the Redis tier. The settings of AutoPipeline are those of "Automatic pipelining" in
// go-redis' README. The comment of AutoPipelineOptions recommends FullDuplex for many concurrent
// callers on a slow network.
func init() {
	register(Peer{
		Name: byHand, Module: "github.com/redis/go-redis/v9",
		Settings: "GET, encoding/json, SET; a batch: MGET (on a cluster a pipeline of GET), then a pipeline of SET",
		Floor:    true, Redis: true, Cluster: true,
		Open: func(c Config) (Cache, error) {
			rdb := newClient(c)
			return &rawBatch{rawRedis{rdb, rdb, c}}, nil
		},
	})
	for name, o := range map[string]*redis.AutoPipelineOptions{
		autoPipeline: nil,
		fullDuplex:   {FullDuplex: true},
	} {
		settings := "GET by AutoPipeline, encoding/json, SET; a batch: GETs, then SETs, by AsyncAutoPipeline"
		if o != nil {
			settings += "; FullDuplex"
		}
		register(Peer{
			Name: name, Module: "github.com/redis/go-redis/v9", Settings: settings, Floor: true, Redis: true,
			Cluster: true,
			Open: func(c Config) (Cache, error) {
				rdb := newClient(c)
				var p *redis.AutoPipeliner
				var err error
				if o == nil {
					p, err = rdb.AutoPipeline()
				} else {
					p, err = rdb.AutoPipelineWithOptions(o)
				}
				return &rawPipeline{rawRedis: rawRedis{rdb, p, c}, options: o}, err
			},
		})
	}
}

// The names of floors that other peers are compared with.
const (
	byHand       = "raw go-redis"
	autoPipeline = "raw AutoPipeline"
	fullDuplex   = "raw full duplex"
)

// A getter is a plain client or an AutoPipeline.
type getter interface {
	Get(ctx context.Context, key string) *redis.StringCmd
}

// rawRedis is the simplest cache, without any protection.
type rawRedis struct {
	rdb    redis.UniversalClient
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

// many decodes the values of keys, loads the rows of nil values, and calls store with those.
func (r *rawRedis) many(
	ctx context.Context, keys []string, values [][]byte, store func(loaded map[string]*Row) error,
) (map[string]*Row, error) {
	all := make(map[string]*Row, len(keys))
	var missing []string
	for i, key := range keys {
		if values[i] == nil {
			missing = append(missing, key)
			continue
		}
		row := new(Row)
		if err := json.Unmarshal(values[i], row); err != nil {
			return nil, err
		}
		all[key] = row
	}
	if len(missing) == 0 {
		return all, nil
	}
	loaded, err := r.config.loadMany(ctx, missing)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, loaded)
	return all, store(loaded)
}

func rawNames(keys []string) []string {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = "raw:" + key
	}
	return names
}

// rawBatch reads batches in two round trips.
type rawBatch struct{ rawRedis }

func (r *rawBatch) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	values, err := getMany(ctx, r.rdb, rawNames(keys))
	if err != nil {
		return nil, err
	}
	return r.many(ctx, keys, values, func(loaded map[string]*Row) error {
		_, err := r.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for key, row := range loaded {
				b, err := json.Marshal(row)
				if err != nil {
					return err
				}
				p.Set(ctx, "raw:"+key, b, cmp.Or(r.config.TTL, time.Minute))
			}
			return nil
		})
		return err
	})
}

// rawPipeline is rawRedis with AutoPipeline. Batches use its deferred face.
type rawPipeline struct {
	rawRedis
	options *redis.AutoPipelineOptions // nil: the defaults

	once  sync.Once
	async *redis.AutoPipeliner // it is created by the first batch
	err   error
}

func (r *rawPipeline) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	r.once.Do(func() {
		if r.options == nil {
			r.async, r.err = r.rdb.AsyncAutoPipeline()
		} else {
			r.async, r.err = r.rdb.AsyncAutoPipelineWithOptions(r.options)
		}
	})
	if r.err != nil {
		return nil, r.err
	}
	replies := make([]*redis.StringCmd, len(keys))
	for i, name := range rawNames(keys) {
		replies[i] = r.async.Get(ctx, name)
	}
	values := make([][]byte, len(keys))
	for i, reply := range replies {
		b, err := reply.Bytes()
		switch {
		case err == nil:
			values[i] = b
		case !errors.Is(err, redis.Nil):
			return nil, err
		}
	}
	return r.many(ctx, keys, values, func(loaded map[string]*Row) error {
		var sets []*redis.StatusCmd
		for key, row := range loaded {
			b, err := json.Marshal(row)
			if err != nil {
				return err
			}
			sets = append(sets, r.async.Set(ctx, "raw:"+key, b, cmp.Or(r.config.TTL, time.Minute)))
		}
		var failed []error
		for _, set := range sets {
			failed = append(failed, set.Err())
		}
		return errors.Join(failed...)
	})
}
