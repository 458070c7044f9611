package bloom

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/lock"
)

// Redis is a filter whose bits are in Redis, for all processes that give it the same name. It is
// safe for concurrent use.
type Redis struct {
	options    Options
	name       string
	capacity   uint64 // of the next generation, at this rate
	rate       float64
	key        string // of the descriptor
	records    string // of generations, and of deleted rows
	watermarks string // of what processes leave to find again
	rdb        redis.UniversalClient
	conn       *conn.Conn // to the segments
	home       *conn.Conn // to the descriptor
	locker     *lock.Locker
	bus        *invalidation.Bus

	cached      atomic.Pointer[cachedDescriptor]
	refetching  atomic.Bool
	replica     atomic.Pointer[Replica] // which hears of what is added here without the network
	clusterNode atomic.Bool             // the client is one of a cluster's node: what a filter has is in several slots
	counts      counts
	watch       *watch
	checkers    checkers
	sourceCheck sourceCheck

	mu     sync.Mutex // makes NewReplica come before Close, or fail
	closed bool
}

// tries is how many times longer than a lookup anything else may take.
const timeoutFactor = 4

// NewRedis makes the filter called name in Redis, for about capacity keys at this rate of false
// positives, such as 0.01. The server needs no module. NewRedis does no I/O. rdb is a *redis.Client
// or a *redis.ClusterClient; the caller closes it, after the filter. nil options are the defaults.
//
// The filter returns "maybe" for all keys until Rebuild has built it. A filter that exists is used
// as it was built: another capacity or rate takes effect with the next Rebuild, and programs that
// name different ones may run together. Programs that write keys as other texts need another name.
func NewRedis(rdb redis.UniversalClient, name string, capacity uint64, rate float64, options *Options) (*Redis, error) {
	r := &Redis{options: options.withDefaults(), name: name, capacity: capacity, rate: rate, rdb: rdb}
	if err := r.setUp(); err != nil {
		return nil, fmt.Errorf("bloom: filter %q: %w", name, err)
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
	if _, err := shapeFor(r.capacity, r.rate); err != nil {
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

// allTries is for all that is no lookup.
func (r *Redis) longTimeout() time.Duration { return timeoutFactor * r.options.Timeout }

// Close ends what goes on in the background, with the Replica's, if there is one, and a Rebuild
// that is under way; the next one begins anew. The Redis client stays open. It may be called again,
// and always returns nil.
func (r *Redis) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	_ = r.locker.Close() // ends a Rebuild that is under way
	r.watch.cancel()
	if replica := r.replica.Load(); replica != nil {
		_ = replica.Close() // always nil
	}
	r.bus.Close()
	r.home.Close()
	r.conn.Close()
	return nil
}

// MightContain reports whether a key may have been added: false means that it certainly was not.
// The result is true, and counted in Stats.Unknown, where the filter was not built yet or is lost
// in part, or, with an error, where Redis does not reply. MightContain ends with ctx, and when one
// of its trips (nearly always there is one) takes longer than Options.Timeout. It finds each key
// whose Add, or committed of Admit, has returned nil before.
func (r *Redis) MightContain(ctx context.Context, key string) (bool, error) {
	maybe, err := r.MightContainMany(ctx, []string{key})
	return maybe[0], err
}

// MightContainMany is MightContain for many keys, in one trip to each server that has some of them
// for each few thousand. The error is that of some of the keys that could not be asked for.
func (r *Redis) MightContainMany(ctx context.Context, keys []string) ([]bool, error) {
	return r.lookup(ctx, hashesOf(keys))
}

// maxAsks is how often a lookup follows a filter that is being replaced.
const maxLookupAttempts = 3

// lookup asks the generation that was the active one when the descriptor was last read, and, in the
// same trip, whether it still is. Where the descriptor was lost or replaced, the generation gets no
// new keys, but its bits may still be there.
func (r *Redis) lookup(ctx context.Context, hashes []hash) ([]bool, error) {
	r.startWatch()
	maybe := make([]bool, len(hashes))
	unknown := indexesUpTo(len(hashes)) // all of them yet
	d, err := r.currentDescriptor(ctx)
	for range maxLookupAttempts {
		if err != nil || d.Active == nil {
			break
		}
		var current bool
		unknown, current, err = r.query(ctx, d, hashes, maybe)
		if current {
			break
		}
		unknown = indexesUpTo(len(hashes)) // also those that could be asked
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

// pause is how long a filter that is not there is taken for that before its descriptor is read
// again, at the least.
const minRefetch = 100 * time.Millisecond

// current returns the descriptor as it was last read. It reads it now if this is the first time, or
// if it named no generation then and that was a while ago.
func (r *Redis) currentDescriptor(ctx context.Context) (*cachedDescriptor, error) {
	d := r.cached.Load()
	switch {
	case d == nil:
		return r.fetchDescriptor(ctx, r.options.Timeout)
	case d.Active == nil && time.Since(d.readAt) >= minRefetch && r.refetching.CompareAndSwap(false, true):
		defer r.refetching.Store(false)
		return r.fetchDescriptor(ctx, r.options.Timeout)
	default:
		return d, nil
	}
}

// fetch reads the descriptor.
func (r *Redis) fetchDescriptor(ctx context.Context, bound time.Duration) (*cachedDescriptor, error) {
	if err := r.home.Down(0); err != nil {
		return nil, err
	}
	at := time.Now()
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
	return r.storeDescriptor(raw, at)
}

// learn notes what the descriptor was at a time. One that cannot be read counts as none: lookups
// answer "maybe", and the next Rebuild replaces it. One of a newer format is an error, for other
// programs may read it.
func (r *Redis) storeDescriptor(raw string, at time.Time) (*cachedDescriptor, error) {
	d := &cachedDescriptor{raw: raw, readAt: at}
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
		cmd = redis.NewCmd(ctx) // the other may still be in use
		cmd.SetErr(err)
	}
	return cmd
}

// Stats returns this process's counts.
func (r *Redis) Stats() Stats {
	s := r.counts.stats()
	if replica := r.replica.Load(); replica != nil {
		replica.addStats(&s)
	}
	return s
}

// NotFound tells how many keys that the filter took for present were not there: its false
// positives.
func (r *Redis) NotFound(keys int) { r.counts.falsePositives.Add(int64(keys)) }

// Deleted tells how many rows were deleted, whose keys stay in the filter until the next Rebuild.
func (r *Redis) Deleted(ctx context.Context, rows int) error {
	return r.wrapError(r.do(ctx, "hincrby", r.records, deletedRows, rows).Err())
}

// deletedRows is the field of the records that counts deleted rows. No generation has it for an id.
const deletedRows = "deleted"

// deleted returns how many rows were deleted since the filter was first built. A value that is no
// number counts as 0.
func (r *Redis) deleted(ctx context.Context) (uint64, error) {
	text, err := r.do(ctx, "hget", r.records, deletedRows).Text()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	n, _ := strconv.ParseUint(text, 10, 64)
	return n, err
}

// State asks Redis what has become of the filter. Redis counts the bits that are set, which takes
// it about 0.1 ms for each MB of them.
func (r *Redis) State(ctx context.Context) (State, error) {
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err != nil {
		return State{}, r.wrapError(err)
	}
	s, err := r.state(ctx, &d.descriptor)
	return s, r.wrapError(err)
}

// state is State for the descriptor d.
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
	s.Built, s.Generation, s.Begun, s.Capacity, s.Rate = true, g.ID, g.Begun, g.Capacity, g.Rate
	s.Bits, s.Hashes, s.Segments = shape.total(), g.K, g.Segments
	if s.SetBits, s.LostSegments, err = r.count(ctx, g); err != nil {
		return State{}, err
	}
	s.Keys = shape.estimate(s.SetBits)
	deleted, err := r.deleted(ctx)
	s.Deleted = max(deleted, g.DeletedBefore) - g.DeletedBefore
	return s, err
}

func (r *Redis) wrapError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bloom: filter %s: %w", r.name, err)
}

// newLocker makes the Locker by which one process rebuilds at a time. It saves work only: if the
// lock fails, the descriptor still keeps two rebuilds apart.
func (r *Redis) newLocker() (*lock.Locker, error) {
	prefix, _ := r.lockName()
	return lock.NewRedis(r.rdb, &lock.LockerOptions{Prefix: prefix, Timeout: min(r.longTimeout(), time.Minute)})
}

// lockName is that of the lock, and its prefix, which is of limited length.
func (r *Redis) lockName() (prefix, name string) {
	const what = "bloom-rebuild:"
	if p := r.options.Prefix + "::" + what; len(p) <= 64 {
		return p, r.name
	}
	return what, r.options.Prefix + "/" + r.name
}
