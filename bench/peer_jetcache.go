package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mgtv-tech/jetcache-go"
	jsoncodec "github.com/mgtv-tech/jetcache-go/encoding/json"
	"github.com/mgtv-tech/jetcache-go/local"
	"github.com/mgtv-tech/jetcache-go/logger"
	"github.com/mgtv-tech/jetcache-go/remote"
	"github.com/redis/go-redis/v9"
)

// jetcache-go has two tiers, singleflight, placeholders for rows that do not exist, and events that
// tell the other processes what to drop from memory. The settings are those of its README, "Basic
// Usage" (FreeCache, a minute in memory) and "syncLocalUsage" (the events by Redis pub/sub):
// https://github.com/mgtv-tech/jetcache-go/blob/v1.2.0/README.md. It also has, and cacheaside has
// not: codecs to choose from (msgpack, sonic), hit rates in its log, a cache whose rows are
// refreshed on a schedule.
//
// Its FreeCache is one for the process, made at first use; each cache here has keys of its own in
// it. Its own LFU is no choice: it never ends its goroutines, and draws random numbers from a
// source that is not safe for concurrent use. Refreshing is off: its documentation has it for few
// keys that are costly to load. Each load and each deletion is an event; those that find the buffer
// of 100 full are dropped, so here it holds 10,000. Of each event dropped there is a warning in its
// log, which is off below errors.
func init() {
	register(Peer{
		Name: "jetcache-go", Module: "github.com/mgtv-tech/jetcache-go", Memory: true, Redis: true, Nulls: true,
		Tells:    true,
		Settings: "FreeCache and Redis, JSON, placeholders, local caches in step by pub/sub with a buffer of 10,000 events; its log off below errors",
		Has:      "msgpack and sonic, scheduled refresh, statistics in the log",
		Open:     openJetcache,
	})
}

const jetcacheChannel = "jetcache:events"

var jetcaches atomic.Int64

var quietJetcache = sync.OnceFunc(func() { logger.SetLevel(logger.LevelError) })

type jetcache struct {
	rdb    *redis.Client
	events *redis.PubSub
	heard  chan struct{} // closed when no more events are heard
	cache  *cache.T[string, *Row]
	config Config
}

func openJetcache(c Config) (Cache, error) {
	quietJetcache()
	rdb := newClient(c)
	id := fmt.Sprintf("jetcache-%d-%d", os.Getpid(), jetcaches.Add(1)) // else each process would take the others' events for its own
	j := &jetcache{rdb: rdb, heard: make(chan struct{}), config: c}
	options := []cache.Option{
		cache.WithName(id), cache.WithStatsDisabled(true), cache.WithCodec(jsoncodec.Name), cache.WithErrNotFound(ErrNotFound),
		cache.WithRemote(remote.NewGoRedisV9Adapter(rdb)), cache.WithRemoteExpiry(c.TTL), cache.WithNotFoundExpiry(c.NullTTL),
	}
	if !c.NoMemory {
		size := local.Size(cmp.Or(c.MemoryBytes, 64<<20))
		options = append(options, cache.WithLocal(local.NewFreeCache(size, cmp.Or(c.MemoryTTL, time.Minute), id)),
			cache.WithSourceId(id), cache.WithSyncLocal(true), cache.WithEventChBufSize(10_000), cache.WithEventHandler(func(e *cache.Event) {
				if b, err := json.Marshal(e); err == nil {
					rdb.Publish(context.Background(), jetcacheChannel, b)
				}
			}))
	}
	j.cache = cache.NewT[string, *Row](cache.New(options...))
	if c.NoMemory {
		close(j.heard)
		return j, nil
	}
	j.events = rdb.Subscribe(context.Background(), jetcacheChannel)
	_, _ = j.events.ReceiveTimeout(context.Background(), time.Second) // else the first events are missed; without Redis it subscribes later
	go func() {
		defer close(j.heard)
		for m := range j.events.Channel() {
			var e cache.Event
			if json.Unmarshal([]byte(m.Payload), &e) == nil && e.SourceID != id {
				for _, key := range e.Keys {
					j.cache.DeleteFromLocalCache(key)
				}
			}
		}
	}()
	return j, nil
}

func (j *jetcache) Get(ctx context.Context, key string) (*Row, error) {
	return j.cache.Get(ctx, "row", key, j.config.Load)
}

// GetMany has no error to return: a key whose load has failed is one without a row.
func (j *jetcache) GetMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	return j.cache.MGet(ctx, "row", keys, j.config.loadMany), nil
}

func (j *jetcache) Invalidate(ctx context.Context, key string) error {
	return j.cache.Delete(ctx, "row:"+key)
}

func (j *jetcache) Close() error {
	j.cache.Close()
	var err error
	if j.events != nil {
		err = j.events.Close()
	}
	<-j.heard
	return errors.Join(err, j.rdb.Close())
}
