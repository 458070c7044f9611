package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Cache is what the loaders of a process share: the connection to Redis and the memory tier. Make
// one for each Redis, and a Loader for each kind of row. It is safe for concurrent use.
type Cache struct {
	inside
	measuring

	options Options
	registry
	redisSide
	memory  *memory.Tier  // nil: no memory tier
	holds   *memory.Holds // nil: Redis has them, or there are none
	limit   *limit.Limit
	log     *limitedlog.Logger
	audits  *audit.Responder        // of copies in memory; nil: there are none, or nobody could ask
	sampler atomic.Pointer[sampler] // is told of invalidations; nil: nobody

	counts struct {
		holdsLost, holdsLeft atomic.Int64 // keys of Holds
		observerPanicked     atomic.Int64
	}
}

// redisSide is the parts of a Cache that use Redis. All are nil without Redis.
type redisSide struct {
	conn  *conn.Conn
	store *lease.Store
	bus   *invalidation.Bus
}

// New makes a Cache on rdb: a *redis.Client, to a single server or by way of sentinels, or a
// *redis.ClusterClient; nil with Options.NoRedis. The caller keeps rdb, and closes it after the
// Cache. nil options are the defaults.
//
// A *redis.Ring, and a client that reads from replicas, are refused: both can show a value after
// its deletion has been acknowledged. On a Redis Cluster rdb must be a *redis.ClusterClient, and on
// a single server it must not; a *redis.Client must lead to one server, which is a master. The
// server is asked at the first command, and with a client of the wrong kind every operation returns
// an error that says which to use. (redis.NewUniversalClient makes a *redis.Client of one address,
// unless IsClusterMode is set.) New adds a hook to rdb. It notes why connections fail, and makes
// new connections of a *redis.Client to a replica fail, for all users of rdb. The server must be
// Redis 7.0 or later, or Valkey; the package comment lists the commands that its user needs.
//
// Set the client's ContextTimeoutEnabled (see Options.RedisTimeout): New logs a warning where it is
// not set. The client's hooks see all commands; a read that goes out together with others has the
// context values of the first of them. New does no I/O, so that a process can start while Redis is
// down.
func New(rdb redis.UniversalClient, options *Options) (*Cache, error) {
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("cacheaside: %w", err)
	}
	switch none := rdb == nil || isNilPointer(rdb); {
	case none && !o.NoRedis:
		return nil, errors.New("cacheaside: the Redis client is nil; for a cache without Redis set Options.NoRedis")
	case !none && o.NoRedis:
		return nil, errors.New("cacheaside: Options.NoRedis is set, and there is a Redis client")
	}
	c := &Cache{options: o, log: limitedlog.New(o.Logger)}
	c.inside = writeside.Give[writeside.Cache[Key]](written{c})
	c.limit = limit.New(limit.Options{AtOnce: o.MaxLoads, Rate: o.LoadRate, Queue: o.MaxQueue})
	if o.MemoryBytes > 0 {
		tier, err := memory.New(o.MemoryBytes)
		if err != nil {
			return nil, fmt.Errorf("cacheaside: %w", err)
		}
		c.memory = tier
	}
	if o.NoRedis {
		c.memory.TrustForEver() // nobody else changes what is read here
		if o.holds() {
			c.holds = memory.NewHolds(o.ReplicaLag)
		}
		return c, nil
	}
	if err := c.useRedis(rdb); err != nil {
		c.memory.Close()
		return nil, fmt.Errorf("cacheaside: %w", err)
	}
	return c, nil
}

// useRedis sets up the parts of the cache that use Redis. It does no I/O.
func (c *Cache) useRedis(rdb redis.UniversalClient) (err error) {
	o := c.options
	if c.conn, err = conn.New(rdb, o.RedisTimeout); err != nil {
		return err
	}
	if !c.conn.Bounded() {
		c.log.Warn("the Redis client's ContextTimeoutEnabled is not set: each command costs a goroutine more, and one that hangs keeps its connection", "", nil)
	}
	c.measuring = measure.Give(measured{c})
	c.conn.CheckServer()
	c.conn.Watch(o.Prefix, o.ReadTimeout)
	c.conn.OnTrouble(c.heardOfRedis)
	readTimeout := o.ReadTimeout
	c.store = lease.NewStore(c.conn, readTimeout)
	var keptTrue invalidation.Memory // a nil interface where there is no tier
	if c.memory != nil {
		keptTrue = c.memory
	}
	c.bus = invalidation.New(c.conn, o.Prefix, o.MaxStaleness, keptTrue)
	c.bus.OnTrouble(func(what string, err error) { c.log.Warn(what, "", err) })
	if o.holds() {
		c.store.Hold(o.lag())
	}
	c.bus.Lag(o.lag())
	if c.memory != nil {
		c.audits = audit.NewResponder(c.bus, c.memory, c.audited)
		c.bus.Answer(c.audits.Heard)
	}
	return nil
}

// audited is the loader of this name, for package audit.
func (c *Cache) audited(name string) audit.Loader {
	if l := c.known(name); l != nil {
		return l
	}
	return nil
}

// Ready is a readiness check: it tells whether reads are answered as they should be. It asks each
// part of Redis for the loader generations that memory depends on, and waits for the answers, for
// Options.RedisTimeout at most. Its error is ErrRedis, with the cause, where a part does not
// answer; or says that announcements of invalidations are not heard yet, as in the first moments of
// a process, so that memory does not answer; or is ErrClosed. While Ready returns nil, memory is
// stale by Options.MaxStaleness at most. Reads work in spite of an error, as
// LoaderOptions.RedisDown says. Without Redis, Ready returns nil.
func (c *Cache) Ready(ctx context.Context) error {
	if c.isClosed() {
		return fmt.Errorf("cacheaside: not ready: %w", ErrClosed)
	}
	if c.bus == nil {
		return nil
	}
	c.bus.Listen()
	errs := make([]error, c.conn.InUse())
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			if err := c.bus.Confirm(ctx, uint8(r)); err != nil {
				errs[r] = redisError(err)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("cacheaside: not ready: %w", err)
		}
	}
	if s := c.busStats(); c.memory != nil && s.Trusted < s.Ranges {
		return fmt.Errorf("cacheaside: not ready: announcements of invalidations arrive for %d of %d ranges of keys", s.Trusted, s.Ranges)
	}
	return nil
}

// Stats returns the counts of all loaders of the cache together.
func (c *Cache) Stats() Stats {
	var s Stats
	for _, l := range c.all() {
		s.addLoader(l.Counts())
	}
	c.addStats(&s)
	return s
}

// StatsByLoader returns the counts of each loader by its name, as its own Stats would.
func (c *Cache) StatsByLoader() map[string]Stats {
	all := make(map[string]Stats)
	for name, l := range c.all() {
		var s Stats
		s.addLoader(l.Counts())
		c.addStats(&s)
		all[name] = s
	}
	return all
}

// addStats adds what is of no single loader.
func (c *Cache) addStats(s *Stats) {
	s.Bus = c.busStats()
	s.HoldsLost, s.HoldsLeft = c.counts.holdsLost.Load(), c.counts.holdsLeft.Load()
	s.ObserverPanics = c.counts.observerPanicked.Load()
	if c.conn != nil {
		s.RedisOut = c.conn.Out()
	}
}

func (c *Cache) busStats() BusStats {
	if c.bus == nil {
		return BusStats{}
	}
	return BusStats(c.bus.Stats())
}

// Close ends the cache: its loaders' callers, present and future, get ErrClosed, and the contexts
// of loads under way end. Close returns when the loads have returned and their leases are released:
// at the latest when their LoadTimeout has passed, and commands to Redis have timed out (by the
// client's own settings, unless its ContextTimeoutEnabled is set). The Redis client stays open.
// Close may be called again; it always returns nil.
func (c *Cache) Close() error {
	var wg sync.WaitGroup
	wg.Go(c.audits.Close)
	for _, l := range c.closeRegistry() {
		wg.Go(l.Close)
	}
	wg.Wait()
	if c.conn != nil {
		c.bus.Close()
		c.conn.Close()
	}
	c.memory.Close()
	c.log.Close()
	return nil
}

// heardOfRedis is told that part of Redis is out of reach, or, if err is nil, back.
func (c *Cache) heardOfRedis(err error) {
	if err != nil {
		c.log.Warn("Redis is out of reach", "", err)
	} else {
		c.log.Inform("Redis is back", "")
	}
}

// shared is what the loaders of the cache share.
func (c *Cache) shared() *rows.Shared {
	o := c.options
	return &rows.Shared{
		Shared: &fetch.Shared{
			Store: c.store, Conn: c.conn, Bus: c.bus, Holds: c.holds,
			LeaseTTL: o.LeaseTTL, QueueTimeout: o.QueueTimeout, ReadTimeout: o.ReadTimeout, MaxStaleness: o.MaxStaleness, ReplicaLag: o.ReplicaLag,
			MayHold: o.holds(), Observe: c.observe, Observed: o.Observer != nil, Warn: c.log.Warn, Caught: caught,
		},
		Memory: c.memory, Limit: c.limit, MaxLoads: o.MaxLoads, MaxQueue: o.MaxQueue,
		Inform: c.log.Inform, Panicked: panicked,
	}
}
