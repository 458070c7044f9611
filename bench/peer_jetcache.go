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
// remove keys from the memory of other processes. The settings are those of "Basic Usage"
// (FreeCache, a minute in memory) and "syncLocalUsage" (events by Redis pub/sub) in its README:
// https://github.com/mgtv-tech/jetcache-go/blob/v1.2.0/README.md. It has some features that
// cacheaside lacks: a choice of codecs (msgpack, sonic), hit rates in its log, rows that are
// refreshed on a schedule.
//
// The process has one FreeCache, created at first use. Each cache here uses different keys in it.
// jetcache-go's own LFU cannot be used: it never ends its goroutines, and its source of random
// numbers is not safe for concurrent use. Refreshing is off: its documentation recommends it for a
// few keys that are expensive to load. Each load and each deletion is an event. If the buffer, by
// default for 100 events, is full, it drops events, so here the buffer holds 10,000. It logs a
// warning for each dropped event; here its log is off below errors.
func init() {
	register(Peer{
		Name: "jetcache-go", Module: "github.com/mgtv-tech/jetcache-go", Memory: true, Redis: true, Nulls: true,
		Notifies: true, Cluster: true,
		Settings: "FreeCache and Redis, JSON, placeholders, local caches synchronized by pub/sub with a buffer of " +
			"10,000 events; its log off below errors",
		Has:  "msgpack and sonic, scheduled refresh, statistics in the log",
		Open: openJetcache,
	})
}

const jetcacheChannel = "jetcache:events"

var jetcaches atomic.Int64

var quietJetcache = sync.OnceFunc(func() { logger.SetLevel(logger.LevelError) })

type jetcache struct {
	rdb    redis.UniversalClient
	events *redis.PubSub
	done   chan struct{} // closed when the goroutine that receives events has ended
	cache  *cache.T[string, *Row]
	config Config
}

func openJetcache(c Config) (Cache, error) {
	quietJetcache()
	rdb := newClient(c)
	// otherwise a process would ignore the events of others as its own
	id := fmt.Sprintf("jetcache-%d-%d", os.Getpid(), jetcaches.Add(1))
	j := &jetcache{rdb: rdb, done: make(chan struct{}), config: c}
	options := []cache.Option{
		cache.WithName(id), cache.WithStatsDisabled(true), cache.WithCodec(jsoncodec.Name),
		cache.WithErrNotFound(ErrNotFound),
		cache.WithRemote(remote.NewGoRedisV9Adapter(rdb)), cache.WithRemoteExpiry(c.TTL),
		cache.WithNotFoundExpiry(c.NullTTL),
	}
	if !c.NoMemory {
		size := local.Size(cmp.Or(c.MemoryBytes, 64<<20))
		options = append(options, cache.WithLocal(local.NewFreeCache(size, cmp.Or(c.MemoryTTL, time.Minute), id)),
			cache.WithSourceId(id), cache.WithSyncLocal(true), cache.WithEventChBufSize(10_000),
			cache.WithEventHandler(func(e *cache.Event) {
				if b, err := json.Marshal(e); err == nil {
					rdb.Publish(context.Background(), jetcacheChannel, b)
				}
			}))
	}
	j.cache = cache.NewT[string, *Row](cache.New(options...))
	if c.NoMemory {
		close(j.done)
		return j, nil
	}
	j.events = rdb.Subscribe(context.Background(), jetcacheChannel)
	// otherwise the first events are missed; if Redis is down, it subscribes later
	_, _ = j.events.ReceiveTimeout(context.Background(), time.Second)
	go func() {
		defer close(j.done)
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

// GetMany cannot return errors: a key whose load has failed is missing from the result.
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
	<-j.done
	return errors.Join(err, j.rdb.Close())
}
