package bloom

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/lock"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// Redis is a filter whose bits are stored in Redis. All processes that use the same name share
// it. It is safe for concurrent use.
type Redis struct {
	options    Options
	name       string
	capacity   uint64 // of the next generation, with rate
	rate       float64
	key        string // of the descriptor
	records    string // key of the hash with the generations and the number of deleted rows
	watermarks string // key of the hash with the watermarks of the processes (see watch)
	rdb        redis.UniversalClient
	conn       *conn.Conn // to the servers of the segments
	home       *conn.Conn // to the server of the descriptor
	locker     *lock.Locker
	bus        *invalidation.Bus

	cached     atomic.Pointer[cachedDescriptor]
	refetching atomic.Bool
	replica    atomic.Pointer[Replica] // receives the keys that this process adds, without the network

	// clusterNode is set if the client connects to one node of a cluster. The keys of the filter
	// are then in several slots.
	clusterNode atomic.Bool
	counts      counts
	watch       *watch
	identity    identity

	mu     sync.Mutex // makes NewReplica fail after Close
	closed bool
}

// timeoutFactor is how many times longer than a lookup any other operation can take.
const timeoutFactor = 4

// NewRedis creates a filter called name, for about capacity keys with this rate of false
// positives, such as 0.01. It does no I/O. The server needs no module. rdb is a *redis.Client or
// a *redis.ClusterClient; the caller closes it after the filter. nil options are the defaults.
//
// The filter returns "maybe" for all keys until Rebuild has built it. If the filter already
// exists, it is used as it was built. A different capacity or rate takes effect with the next
// Rebuild, and programs with different values can run together. Programs that format keys
// differently need a different name.
func NewRedis(rdb redis.UniversalClient, name string, capacity uint64, rate float64, options *Options) (*Redis, error) {
	r := &Redis{options: options.withDefaults(), name: name, capacity: capacity, rate: rate, rdb: rdb}
	if err := r.setUp(); err != nil {
		return nil, wording.Errorf("bloom: filter %q: %w", name, err)
	}
	return r, nil
}

func (r *Redis) setUp() (err error) {
	switch {
	case !keys.ValidName(r.name):
		return errors.New("only letters, digits, '_', '.' and '-' in a name")
	case r.rdb == nil:
		return errors.New("the Redis client is nil")
	}
	if err := r.options.check(); err != nil {
		return err
	}
	if _, err := bitmap.ShapeFor(r.capacity, r.rate); err != nil {
		return err
	}
	if r.conn, err = conn.New(r.rdb, r.longTimeout()); err != nil {
		return err
	}
	if r.home, err = conn.NewHome(r.rdb, r.longTimeout()); err != nil {
		return err
	}
	if r.locker, err = r.newLocker(); err != nil {
		return err
	}
	r.key = r.options.Prefix + "::bloom:{" + r.name + "}"
	r.records, r.watermarks = r.key+":records", r.key+":marks"
	r.watch = newWatch(r.options.watchInterval)
	r.bus = invalidation.New(r.home, r.key, r.options.MaxStaleness, busListener{r})
	r.conn.Watch(r.options.Prefix, r.options.Timeout)
	r.home.Watch(r.options.Prefix, r.options.Timeout)
	return nil
}

// longTimeout returns the timeout of a round trip that is not a lookup.
func (r *Redis) longTimeout() time.Duration { return timeoutFactor * r.options.Timeout }

// Close stops the background work of the filter, of its Replica if there is one, and a Rebuild
// that is in progress. The next Rebuild starts from the beginning. The Redis client stays open.
// Close may be called again, and always returns nil.
func (r *Redis) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	_ = r.locker.Close() // stops a Rebuild that is in progress
	r.watch.cancel()
	if replica := r.replica.Load(); replica != nil {
		_ = replica.Close() // always nil
	}
	r.bus.Close()
	r.home.Close()
	r.conn.Close()
	return nil
}

// MightContain reports whether a key may have been added. False means that it certainly was not.
// The result is true, and is counted in Stats.Unknown, if the filter has not been built or is
// partly lost. If Redis does not reply, the result is true, with an error. MightContain returns
// when ctx ends, or when one of its round trips takes longer than Options.Timeout. It nearly always
// takes one. It finds each key for which Add, or the function committed of Inserting, has returned
// nil before.
func (r *Redis) MightContain(ctx context.Context, key string) (bool, error) {
	maybe, err := r.MightContainMany(ctx, []string{key})
	return maybe[0], err
}

// MightContainMany is MightContain for many keys. For every few thousand keys it takes one round
// trip to each server that holds some of them. The error is that of some of the keys that could
// not be looked up.
func (r *Redis) MightContainMany(ctx context.Context, keys []string) ([]bool, error) {
	return r.lookup(ctx, bitmap.HashesOf(keys))
}

// maxLookupAttempts is how often a lookup tries again because the filter is being replaced.
const maxLookupAttempts = 3

// lookup queries the generation that was active when the descriptor was last read. In the same
// round trip it checks that the generation is still active. Results from another generation do
// not count: it receives no new keys, although its bits may still exist.
func (r *Redis) lookup(ctx context.Context, hashes []bitmap.Hash) ([]bool, error) {
	r.startWatch()
	maybe := make([]bool, len(hashes))
	unknown := indexesUpTo(len(hashes)) // until a query succeeds
	d, err := r.currentDescriptor(ctx)
	for range maxLookupAttempts {
		if err != nil || d.Active == nil {
			break
		}
		if err = r.unusable(d.Active); err != nil {
			break
		}
		var current bool
		unknown, current, err = r.query(ctx, d, hashes, maybe)
		if current {
			break
		}
		unknown = indexesUpTo(len(hashes)) // including keys whose query succeeded
		if err != nil {
			break
		}
		d, err = r.fetchDescriptor(ctx, r.options.Timeout)
	}
	if err != nil && conn.Unable(err) && ctx.Err() == nil {
		r.watch.markSuspect()
	}
	if r.watch.suspect() {
		unknown = indexesUpTo(len(hashes))
	}
	for _, i := range unknown {
		maybe[i] = true
	}
	r.counts.countLookups(maybe, len(unknown), err)
	return maybe, r.wrapError(err)
}

// minRefetch is the minimum time that a filter counts as missing before its descriptor is read
// again.
const minRefetch = 100 * time.Millisecond

// currentDescriptor returns the descriptor as it was last read. It reads the descriptor if that
// has not happened, or if the last one named no active generation and is older than minRefetch.
func (r *Redis) currentDescriptor(ctx context.Context) (*cachedDescriptor, error) {
	d := r.cached.Load()
	switch {
	case d == nil:
		return r.fetchDescriptor(ctx, r.options.Timeout)
	case (d.Active == nil || r.unusable(d.Active) != nil) && time.Since(d.readAt) >= minRefetch &&
		r.refetching.CompareAndSwap(false, true):
		defer r.refetching.Store(false)
		return r.fetchDescriptor(ctx, r.options.Timeout)
	default:
		return d, nil
	}
}

// fetchDescriptor reads the descriptor from Redis.
func (r *Redis) fetchDescriptor(ctx context.Context, bound time.Duration) (*cachedDescriptor, error) {
	if err := r.home.Down(0); err != nil {
		return nil, err
	}
	readAt := time.Now()
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	cmd := redis.NewStringCmd(bounded, "get", r.key)
	if err := r.home.Ask(ctx, bounded, []redis.Cmder{cmd}).Err(0); err != nil {
		return nil, err
	}
	raw, err := cmd.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	return r.storeDescriptor(raw, readAt)
}

// storeDescriptor caches the descriptor that was read at a time. A descriptor that cannot be
// decoded counts as missing: lookups return "maybe", and the next Rebuild replaces it. A
// descriptor of a newer format is an error. It must not be replaced, because newer programs use it.
func (r *Redis) storeDescriptor(raw string, readAt time.Time) (*cachedDescriptor, error) {
	d := &cachedDescriptor{raw: raw, readAt: readAt}
	var err error
	if d.descriptor, err = decodeDescriptor(raw); err != nil {
		r.counts.malformed.Add(1)
		d.descriptor = descriptor{}
	}
	r.cached.Store(d)
	if errors.Is(err, errFormat) {
		return nil, err
	}
	return d, nil
}

// do sends a command to the server of the descriptor.
func (r *Redis) do(ctx context.Context, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, r.longTimeout())
	defer cancel()
	cmd := redis.NewCmd(ctx, args...)
	if err := r.home.Send(ctx, []redis.Cmder{cmd}); err != nil {
		cmd = redis.NewCmd(ctx) // the client may still use the other command
		cmd.SetErr(err)
	}
	return cmd
}

// Stats returns the counts of this process.
func (r *Redis) Stats() Stats {
	s := r.counts.stats()
	if replica := r.replica.Load(); replica != nil {
		replica.addStats(&s)
	}
	return s
}

// NotFound records the number of keys that the filter returned "maybe" for, and whose rows do not
// exist: its false positives.
func (r *Redis) NotFound(keys int) { r.counts.falsePositives.Add(int64(keys)) }

// Deleted reports the number of deleted rows. Their keys stay in the filter until the next
// Rebuild.
func (r *Redis) Deleted(ctx context.Context, rows int) error {
	return r.wrapError(r.do(ctx, "hincrby", r.records, deletedRows, rows).Err())
}

// deletedRows is the field of the records that counts deleted rows. It cannot be the ID of a
// generation.
const deletedRows = "deleted"

// deleted returns the number of rows deleted since the filter was first built. A value that is
// not a number counts as 0.
func (r *Redis) deleted(ctx context.Context) (uint64, error) {
	text, err := r.do(ctx, "hget", r.records, deletedRows).Text()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	n, _ := strconv.ParseUint(text, 10, 64)
	return n, err
}

// State reads the state of the filter from Redis. Redis counts the bits that are set, which takes
// about 0.1 ms per MB.
func (r *Redis) State(ctx context.Context) (State, error) {
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err != nil {
		return State{}, r.wrapError(err)
	}
	s, err := r.state(ctx, &d.descriptor)
	return s, r.wrapError(err)
}

// state returns the State for the descriptor d.
func (r *Redis) state(ctx context.Context, d *descriptor) (s State, err error) {
	s.Old = len(d.Old)
	if g := d.Building; g != nil {
		s.Building, s.Next, s.NextBegun = true, g.ID, g.Begun
	}
	g := d.Active
	if g == nil {
		return s, nil
	}
	shape := g.shape()
	s.Owner, s.Table = g.Owner, g.Table
	s.Built, s.Generation, s.Begun, s.Capacity, s.Rate = true, g.ID, g.Begun, g.Capacity, g.Rate
	s.Bits, s.Hashes, s.Segments = shape.Total(), g.K, g.Segments
	if s.SetBits, s.LostSegments, err = r.count(ctx, g); err != nil {
		return State{}, err
	}
	s.Keys = shape.Estimate(s.SetBits)
	deleted, err := r.deleted(ctx)
	s.Deleted = max(deleted, g.DeletedBefore) - g.DeletedBefore
	return s, err
}

func (r *Redis) wrapError(err error) error {
	if err == nil {
		return nil
	}
	return wording.Errorf("bloom: filter %s: %w", r.name, err)
}

// newLocker creates the Locker that lets one process rebuild at a time. The lock only saves work:
// if it fails, changes of the descriptor still keep two rebuilds apart.
func (r *Redis) newLocker() (*lock.Locker, error) {
	prefix, _ := r.lockName()
	return lock.NewRedis(r.rdb, &lock.Options{Prefix: prefix, Timeout: min(r.longTimeout(), time.Minute)})
}

// lockName returns the name of the lock and its prefix, whose length is limited.
func (r *Redis) lockName() (prefix, name string) {
	const what = "bloom-rebuild:"
	if p := r.options.Prefix + "::" + what; len(p) <= 64 {
		return p, r.name
	}
	return what, r.options.Prefix + "/" + r.name
}
