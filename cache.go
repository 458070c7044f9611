package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/channel"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Cache is what the loaders of a process share: the connection to Redis and the memory tier. Make
// one for each Redis, and a Loader for each kind of row. It is safe for concurrent use.
type Cache struct {
	inside
	measuring

	options Options
	conn    *conn.Conn // nil: no Redis
	store   *lease.Store
	channel *channel.Channel
	memory  *local.Tier  // nil: no memory tier
	holds   *local.Holds // nil: Redis has them, or there are none
	limit   *limit.Limit
	log     *limitedlog.Logger
	audits  *audit.Responder        // of copies in memory; nil: there are none, or nobody could ask
	sampler atomic.Pointer[sampler] // who is told of invalidations; nil: nobody

	holdsLost, holdsLeft atomic.Int64 // keys of Holds
	observerPanicked     atomic.Int64

	mu      sync.Mutex
	loaders map[string]registered // by name
	strange map[string]bool       // names of loaders that are not here and were told of
	closed  bool
}

// loader is the rows.Reader of a Loader of any type.
type loader interface {
	audit.Loader
	Close()
	Raise(slots int, generation uint64)
	Generation(name string) *local.Era
	Counts() rows.Counts
	ForgetFailure(text string)
	ForgetAll()
	KeyOf(version, text string) (key any, ok bool)
	RefreshKeys(ctx context.Context, keys []any) []error
	AuditRedis(ctx context.Context, key any, good measure.Stamp, mayLoad func() bool) (measure.Verdict, measure.Stamp)
	Inserting(ctx context.Context, texts []string) (committed func(context.Context) error, err error)
	HasFilter() bool
}

// registered is a loader, and the type of its Loader.
type registered struct {
	loader
	of reflect.Type
}

// New makes a Cache on rdb: a *redis.Client, to a single server or by way of sentinels, or a
// *redis.ClusterClient; nil with Options.NoRedis. The caller keeps rdb, and closes it after the
// Cache. nil options are the defaults.
//
// A *redis.Ring, and a client that reads from replicas, are refused: both can show a value after
// its deletion has been acknowledged. On a Redis Cluster rdb must be a *redis.ClusterClient, and on
// a single server it must not: the server is asked at the first command, and a client of the wrong
// kind gets an error from every operation that says which to use. (redis.NewUniversalClient makes a
// *redis.Client of one address, unless IsClusterMode is set.) New adds a hook to rdb that notes why
// connections fail. (A failover client made with ReplicaOnly cannot be told from others; do not
// pass one.) The Redis server must be of version 6 or later; the commands that its user needs are
// listed in the package comment.
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
	c := &Cache{options: o, loaders: make(map[string]registered)}
	c.inside = writeside.Give[writeside.Cache[Key]](written{c})
	c.log = limitedlog.New(o.Logger)
	c.limit = limit.New(limit.Options{AtOnce: o.MaxLoads, Rate: o.LoadRate, Queue: o.MaxQueue})
	var keptTrue channel.Memory // a nil interface where there is no tier
	if o.MemoryBytes > 0 {
		memory, err := local.New(o.MemoryBytes)
		if err != nil {
			return nil, fmt.Errorf("cacheaside: %w", err)
		}
		c.memory, keptTrue = memory, memory
	}
	if o.NoRedis {
		c.memory.TrustForEver() // nobody else changes what is read here
		if o.holds() {
			c.holds = local.NewHolds(o.ReplicaLag)
		}
		return c, nil
	}
	var err error
	if c.conn, err = conn.New(rdb, o.RedisTimeout); err != nil {
		c.memory.Close()
		return nil, fmt.Errorf("cacheaside: %w", err)
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
	c.channel = channel.New(c.conn, o.Prefix, o.MaxStaleness, keptTrue)
	c.channel.OnTrouble(func(what string, err error) { c.log.Warn(what, "", err) })
	if o.holds() {
		c.store.Hold(o.lag())
	}
	c.channel.Lag(o.lag())
	if c.memory != nil {
		c.audits = audit.NewResponder(c.channel, c.memory, func(name string) audit.Loader {
			if l := c.known(name); l != nil {
				return l
			}
			return nil
		})
		c.channel.Answer(c.audits.Heard)
	}
	return c, nil
}

// add registers a loader under its name. Two loaders of one name would read each other's entries.
func (c *Cache) add(name string, l registered) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.loaders[name].loader != nil:
		return fmt.Errorf("the cache already has a loader of this name, a %s: make one, and pass it on", c.loaders[name].of)
	}
	c.loaders[name] = l
	if c.channel != nil {
		c.channel.Register(name, l.Raise)
	}
	return nil
}

// known is the loader of this name, if this process has it.
func (c *Cache) known(name string) loader {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loaders[name].loader
}

// strangersAtMost bounds the names of loaders that this process does not have and has told of.
const strangersAtMost = 100

// stranger notes that a key names a loader that this process does not have, while it has others:
// the name may be misspelt.
func (c *Cache) stranger(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.loaders) == 0 || c.strange[name] || len(c.strange) == strangersAtMost {
		return
	}
	if c.strange == nil {
		c.strange = make(map[string]bool)
	}
	c.strange[name] = true
	c.log.Inform("keys of a loader that this process does not have were invalidated; is its name right?", name)
}

func (c *Cache) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Ready tells whether reads are answered as they should be, for a readiness check: it asks each
// part of Redis for the generations that memory depends on, and waits for the answer, for
// Options.RedisTimeout at most. Its error is ErrRedis, with the cause, where a part does not
// answer; or says that announcements of invalidations are not heard yet, as in the first moments of
// a process, so that memory does not answer; or is ErrClosed. While it returns nil, memory is stale
// by Options.MaxStaleness at most. Reads work in spite of an error, as LoaderOptions.RedisDown
// says; without Redis it returns nil.
func (c *Cache) Ready(ctx context.Context) error {
	if c.isClosed() {
		return fmt.Errorf("cacheaside: not ready: %w", ErrClosed)
	}
	if c.channel == nil {
		return nil
	}
	c.channel.Listen()
	errs := make([]error, c.conn.InUse())
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			if err := c.channel.Confirm(ctx, uint8(r)); err != nil {
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
	if s := c.channelStats(); c.memory != nil && s.Trusted < s.Ranges {
		return fmt.Errorf("cacheaside: not ready: announcements of invalidations are heard of %d of %d parts of the keys", s.Trusted, s.Ranges)
	}
	return nil
}

// Stats returns the counts of all loaders of the cache together.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s Stats
	for _, l := range c.loaders {
		s.addLoader(l.Counts())
	}
	c.addStats(&s)
	return s
}

// StatsByLoader returns the counts of each loader by its name, as its own Stats would.
func (c *Cache) StatsByLoader() map[string]Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]Stats, len(c.loaders))
	for name, l := range c.loaders {
		var s Stats
		s.addLoader(l.Counts())
		c.addStats(&s)
		all[name] = s
	}
	return all
}

// addStats adds what is of no single loader.
func (c *Cache) addStats(s *Stats) {
	s.Channel = c.channelStats()
	s.HoldsLost, s.HoldsLeft = c.holdsLost.Load(), c.holdsLeft.Load()
	s.ObserverPanics = c.observerPanicked.Load()
	if c.conn != nil {
		s.RedisOut = c.conn.Out()
	}
}

func (c *Cache) channelStats() ChannelStats {
	if c.channel == nil {
		return ChannelStats{}
	}
	return ChannelStats(c.channel.Stats())
}

// Close ends the cache: its loaders' callers, present and future, get ErrClosed, and the contexts
// of loads under way end. It returns when the loads have returned and their leases are released: at
// the latest when their LoadTimeout has passed, and commands to Redis have timed out (by the
// client's own settings, unless its ContextTimeoutEnabled is set). The Redis client stays open.
// Close may be called again; it always returns nil.
func (c *Cache) Close() error {
	c.mu.Lock()
	c.closed = true
	loaders := make([]loader, 0, len(c.loaders))
	for _, l := range c.loaders {
		loaders = append(loaders, l)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(c.audits.Close)
	for _, l := range loaders {
		wg.Go(l.Close)
	}
	wg.Wait()
	if c.conn != nil {
		c.channel.Close()
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
			Store: c.store, Conn: c.conn, Channel: c.channel, Holds: c.holds,
			LeaseTTL: o.LeaseTTL, QueueTimeout: o.QueueTimeout, ReadTimeout: o.ReadTimeout, MaxStaleness: o.MaxStaleness, ReplicaLag: o.ReplicaLag,
			MayHold: o.holds(), Observe: c.observe, Observed: o.Observer != nil, Warn: c.log.Warn, Caught: caught,
		},
		Memory: c.memory, Limit: c.limit, MaxLoads: o.MaxLoads, MaxQueue: o.MaxQueue,
		Inform: c.log.Inform, Panicked: panicked,
	}
}
