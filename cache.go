package cacheaside

import (
	"errors"
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
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// A Cache holds the connection to Redis and the memory tier, which all loaders of a process
// share. Make one Cache for each Redis, and one Loader for each kind of row. A Cache is safe for
// concurrent use.
type Cache struct {
	inside
	measuring

	options Options
	registry
	redisSide
	memory *memory.Tier  // nil: no memory tier
	holds  *memory.Holds // the holds without Redis; nil: Redis keeps them, or there are none

	groupHolds *memory.Holds // of groups that were invalidated within ReplicaLag; nil if that is 0
	limit      *limit.Limit
	log        *limitedlog.Logger
	audits     *audit.Responder        // replies to meters about copies in memory; nil: no memory tier, or no Redis
	wasReady   atomic.Bool             // Ready has returned nil
	sampler    atomic.Pointer[sampler] // receives acknowledged invalidations for a meter; nil: no meter

	counts struct {
		holdsLost, holdsLeft atomic.Int64 // keys of Holds
		observerPanicked     atomic.Int64
	}
}

// redisSide contains the parts of a Cache that use Redis. All are nil without Redis.
type redisSide struct {
	conn  *conn.Conn
	store *lease.Store
	bus   *invalidation.Bus
}

// New returns a Cache on rdb: a *redis.Client, which connects to a single server, directly or
// through sentinels, or a *redis.ClusterClient. The caller owns rdb, and closes it after the Cache.
// Nil options mean the defaults. NewLocal returns a Cache without Redis.
//
// The server must be Redis 7.0 or later, or Valkey, and a master. The package comment lists the
// commands that its user needs. New returns an error for a *redis.Ring and for a client that
// reads from replicas, because both can return a value after its deletion was acknowledged. A
// Redis Cluster requires a *redis.ClusterClient, and a single server requires a *redis.Client.
// (redis.NewUniversalClient returns a *redis.Client for one address, unless IsClusterMode is
// set.) New does no I/O, so a process can start while Redis is down. The first command checks the
// server. If the client does not fit the server, every operation returns an error that says which
// client to use.
//
// New adds a hook to rdb. The hook records why connections fail. It also fails new connections of
// a *redis.Client to a replica, for all users of rdb. For a *redis.ClusterClient, New calls its
// option NewClient to check the options of the nodes' clients, and closes that client unused. With
// MinIdleConns that client may open connections to 127.0.0.1:6379. If NewClient returns nil for
// this address, New calls it with those of the option Addrs instead.
//
// Set the client's ContextTimeoutEnabled (see Options.RedisTimeout); otherwise New logs a
// warning. The client's hooks see all commands. A read that is sent together with others has the
// context values of the first of them.
func New(rdb redis.UniversalClient, options *Options) (*Cache, error) {
	if rdb == nil || isNilPointer(rdb) {
		return nil, errors.New("cacheaside: the Redis client is nil; NewLocal returns a Cache without Redis")
	}
	c, err := makeCache(options)
	if err != nil {
		return nil, err
	}
	if err := c.useRedis(rdb); err != nil {
		c.memory.Close()
		return nil, wording.Errorf("cacheaside: %w", err)
	}
	return c, nil
}

// NewLocal returns a Cache without Redis, for tests and for programs with one process. Its memory
// tier is its only one. All other promises hold as with Redis, within this process. The options
// for Redis, such as RedisTimeout and MaxStaleness, have no effect. Nil options mean the defaults.
func NewLocal(options *Options) (*Cache, error) {
	c, err := makeCache(options)
	if err != nil {
		return nil, err
	}
	c.memory.TrustForEver() // no other process can change the rows' entries
	if c.options.holds() {
		c.holds = memory.NewHolds(c.options.ReplicaLag)
	}
	return c, nil
}

// makeCache returns a Cache to which New adds Redis.
func makeCache(options *Options) (*Cache, error) {
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, wording.Errorf("cacheaside: %w", err)
	}
	c := &Cache{options: o, log: limitedlog.New(o.Logger)}
	c.inside = writeside.Give[writeside.Cache[Key]](writerCache{c})
	c.limit = limit.New(limit.Options{AtOnce: o.MaxLoads, Rate: o.LoadRate, Queue: o.MaxQueue})
	if o.MemoryBytes > 0 {
		tier, err := memory.New(o.MemoryBytes)
		if err != nil {
			return nil, wording.Errorf("cacheaside: %w", err)
		}
		c.memory = tier
	}
	if o.ReplicaLag > 0 {
		c.groupHolds = memory.NewHolds(o.ReplicaLag)
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
		c.log.Warn("the Redis client's ContextTimeoutEnabled is not set: each command costs an additional goroutine, "+
			"and a command that hangs keeps its connection", "", nil)
	}
	c.measuring = measure.Give(meterCache{c})
	c.conn.CheckServer()
	c.conn.Watch(o.Prefix, o.ReadTimeout)
	c.conn.OnTrouble(c.logRedis)
	readTimeout := o.ReadTimeout
	c.store = lease.NewStore(c.conn, readTimeout)
	var tier invalidation.Memory // a nil interface without a memory tier
	if c.memory != nil {
		tier = c.memory
	}
	c.bus = invalidation.New(c.conn, o.Prefix, o.MaxStaleness, tier)
	c.bus.OnTrouble(func(message string, err error) { c.log.Warn(message, "", err) })
	if o.holds() {
		c.store.Hold(o.lag())
	}
	c.bus.Lag(o.lag())
	if c.memory != nil {
		c.audits = audit.NewResponder(c.bus, c.memory, c.audited)
		c.bus.OnQuestion(c.audits.HandleQuestion)
	}
	return nil
}

// audited returns the loader with this name, for package audit.
func (c *Cache) audited(name string) audit.Loader {
	if l := c.known(name); l != nil {
		return l
	}
	return nil
}

// Stats returns the sums of the counts of all loaders of the cache.
func (c *Cache) Stats() Stats {
	var s Stats
	for _, l := range c.all() {
		s.addLoader(l.Counts())
	}
	c.addStats(&s)
	return s
}

// StatsByLoader returns the counts of each loader, as its Stats method does, by the loader's
// name.
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

// addStats adds the counts that belong to the cache and not to a single loader.
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

// Close closes the cache and its loaders. Current and later callers get ErrClosed, and the
// contexts of loads in progress end. Close returns when these loads have returned and their
// leases are released. That takes at most until their LoadTimeout has passed and commands to
// Redis have timed out (by the client's own timeouts, unless its ContextTimeoutEnabled is set).
// The Redis client stays open. Close may be called more than once; it always returns nil.
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

// logRedis logs that a part of Redis is down, or that it is back if err is nil.
func (c *Cache) logRedis(err error) {
	if err != nil {
		c.log.Warn("Redis is down", "", err)
	} else {
		c.log.Inform("Redis is back", "")
	}
}

// shared returns the parts and settings of the cache that its loaders use.
func (c *Cache) shared() *rows.Shared {
	o := c.options
	return &rows.Shared{
		Shared: &fetch.Shared{
			Store: c.store, Conn: c.conn, Bus: c.bus, Holds: c.holds, GroupHolds: c.groupHolds,
			LeaseTTL: o.LeaseTTL, QueueTimeout: o.QueueTimeout, ReadTimeout: o.ReadTimeout,
			MaxStaleness: o.MaxStaleness, ReplicaLag: o.ReplicaLag,
			SlowTrip: fetch.SlowTrip, MayHold: o.holds(), Observe: c.observe, Observed: o.Observer != nil,
			Warn: c.log.Warn, Caught: caught,
		},
		Memory: c.memory, Limit: c.limit, MaxLoads: o.MaxLoads, MaxQueue: o.MaxQueue,
		Inform: c.log.Inform, Panicked: panicked,
	}
}
