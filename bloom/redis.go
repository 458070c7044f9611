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
	options  Options
	name     string
	capacity uint64 // of the next generation, at this rate
	rate     float64
	key      string // of the descriptor
	records  string // of generations, and of deleted rows
	marks    string // of what processes leave to find again
	rdb      redis.UniversalClient
	conn     *conn.Conn // to the segments
	home     *conn.Conn // to the descriptor
	locker   *lock.Locker
	bus      *invalidation.Bus

	known    atomic.Pointer[known]
	looking  atomic.Bool
	copy     atomic.Pointer[Replica] // which hears of what is added here without the network
	apart    atomic.Bool             // the client is one of a cluster's node: what a filter has is in several slots
	counts   counts
	watch    *watch
	checkers checkers
	judged   judged

	mu     sync.Mutex // makes NewReplica come before Close, or fail
	closed bool
}

// tries is how many times longer than a lookup anything else may take.
const tries = 4

// NewRedis makes the filter called name in Redis, for about capacity keys at this rate of false
// positives, such as 0.01. The server needs no module. NewRedis does no I/O. rdb is a *redis.Client
// or a *redis.ClusterClient; the caller closes it, after the filter. nil options are the defaults.
//
// The filter returns "maybe" for all keys until Rebuild has built it. A filter that exists is used
// as it was built: another capacity or rate takes effect with the next Rebuild, and programs that
// name different ones may run together. Programs that write keys as other texts need another name.
func NewRedis(rdb redis.UniversalClient, name string, capacity uint64, rate float64, options *Options) (*Redis, error) {
	f := &Redis{options: options.withDefaults(), name: name, capacity: capacity, rate: rate, rdb: rdb}
	if err := f.setUp(); err != nil {
		return nil, fmt.Errorf("bloom: filter %q: %w", name, err)
	}
	return f, nil
}

func (f *Redis) setUp() (err error) {
	switch {
	case !keys.ValidName(f.name):
		return errors.New("only letters, digits, '_', '.' and '-' in a name")
	case f.rdb == nil:
		return errors.New("the Redis client is nil")
	}
	if err := f.options.check(); err != nil {
		return err
	}
	if _, err := shapeFor(f.capacity, f.rate); err != nil {
		return err
	}
	if f.conn, err = conn.New(f.rdb, f.allTries()); err != nil {
		return err
	}
	if f.home, err = conn.NewHome(f.rdb, f.allTries()); err != nil {
		return err
	}
	if f.locker, err = f.newLocker(); err != nil {
		return err
	}
	f.key = f.options.Prefix + "::bloom:{" + f.name + "}"
	f.records, f.marks = f.key+":records", f.key+":marks"
	f.watch = newWatch(f.options.watch)
	f.bus = invalidation.New(f.home, f.key, f.options.MaxStaleness, ear{f})
	f.conn.Watch(f.options.Prefix, f.options.Timeout)
	f.home.Watch(f.options.Prefix, f.options.Timeout)
	return nil
}

// allTries is for all that is no lookup.
func (f *Redis) allTries() time.Duration { return tries * f.options.Timeout }

// Close ends what goes on in the background, with the Replica's, if there is one, and a Rebuild
// that is under way; the next one begins anew. The Redis client stays open. It may be called again,
// and always returns nil.
func (f *Redis) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	_ = f.locker.Close() // ends a Rebuild that is under way
	f.watch.cancel()
	if r := f.copy.Load(); r != nil {
		_ = r.Close() // always nil
	}
	f.bus.Close()
	f.home.Close()
	f.conn.Close()
	return nil
}

// MightContain reports whether a key may have been added: false means that it certainly was not.
// The result is true, and counted in Stats.Unknown, where the filter was not built yet or is lost
// in part, or, with an error, where Redis does not reply. MightContain ends with ctx, and when one
// of its trips (nearly always there is one) takes longer than Options.Timeout. It finds each key
// whose Add, or committed of Admit, has returned nil before.
func (f *Redis) MightContain(ctx context.Context, key string) (bool, error) {
	maybe, err := f.MightContainMany(ctx, []string{key})
	return maybe[0], err
}

// MightContainMany is MightContain for many keys, in one trip to each server that has some of them
// for each few thousand. The error is that of some of the keys that could not be asked for.
func (f *Redis) MightContainMany(ctx context.Context, keys []string) ([]bool, error) {
	return f.lookup(ctx, hashesOf(keys))
}

// maxAsks is how often a lookup follows a filter that is being replaced.
const maxAsks = 3

// lookup asks the generation that was the active one when the descriptor was last read, and, in the
// same trip, whether it still is. Where the descriptor was lost or replaced, the generation gets no
// new keys, but its bits may still be there.
func (f *Redis) lookup(ctx context.Context, hashes []hash) ([]bool, error) {
	f.watching()
	maybe := make([]bool, len(hashes))
	unsure := upTo(len(hashes)) // all of them yet
	d, err := f.current(ctx)
	for range maxAsks {
		if err != nil || d.Active == nil {
			break
		}
		var current bool
		unsure, current, err = f.ask(ctx, d, hashes, maybe)
		if current {
			break
		}
		unsure = upTo(len(hashes)) // also those that could be asked
		if err != nil {
			break
		}
		d, err = f.fetch(ctx, f.options.Timeout)
	}
	if err != nil && conn.Unable(err) && ctx.Err() == nil {
		f.watch.troubled()
	}
	if f.watch.unsure() {
		unsure = upTo(len(hashes))
	}
	for _, i := range unsure {
		maybe[i] = true
	}
	f.counts.looked(maybe, len(unsure), err)
	return maybe, f.failed(err)
}

// pause is how long a filter that is not there is taken for that before its descriptor is read
// again, at the least.
const pause = 100 * time.Millisecond

// current returns the descriptor as it was last read. It reads it now if this is the first time, or
// if it named no generation then and that was a while ago.
func (f *Redis) current(ctx context.Context) (*known, error) {
	d := f.known.Load()
	switch {
	case d == nil:
		return f.fetch(ctx, f.options.Timeout)
	case d.Active == nil && time.Since(d.at) >= pause && f.looking.CompareAndSwap(false, true):
		defer f.looking.Store(false)
		return f.fetch(ctx, f.options.Timeout)
	default:
		return d, nil
	}
}

// fetch reads the descriptor.
func (f *Redis) fetch(ctx context.Context, bound time.Duration) (*known, error) {
	if err := f.home.Down(0); err != nil {
		return nil, err
	}
	at := time.Now()
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	cmd := redis.NewStringCmd(bounded, "get", f.key)
	if err := f.home.Ask(ctx, bounded, []redis.Cmder{cmd}).Err(0); err != nil {
		return nil, err
	}
	raw, err := cmd.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	return f.learn(raw, at)
}

// learn notes what the descriptor was at a time. One that cannot be read counts as none: lookups
// answer "maybe", and the next Rebuild replaces it. One of a newer format is an error, for other
// programs may read it.
func (f *Redis) learn(raw string, at time.Time) (*known, error) {
	d := &known{raw: raw, at: at}
	var err error
	if d.descriptor, err = decodeDescriptor(raw); err != nil {
		f.counts.malformed.Add(1)
		d.descriptor = descriptor{}
	}
	f.known.Store(d)
	if errors.Is(err, errFormat) {
		return nil, err
	}
	return d, nil
}

// do sends a command to the server of the descriptor.
func (f *Redis) do(ctx context.Context, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, f.allTries())
	defer cancel()
	cmd := redis.NewCmd(ctx, args...)
	if err := f.home.Send(ctx, []redis.Cmder{cmd}); err != nil {
		cmd = redis.NewCmd(ctx) // the other may still be in use
		cmd.SetErr(err)
	}
	return cmd
}

// Stats returns this process's counts.
func (f *Redis) Stats() Stats {
	s := f.counts.stats()
	if r := f.copy.Load(); r != nil {
		r.stats(&s)
	}
	return s
}

// NotFound tells how many keys that the filter took for present were not there: its false
// positives.
func (f *Redis) NotFound(keys int) { f.counts.falsePositives.Add(int64(keys)) }

// Deleted tells how many rows were deleted, whose keys stay in the filter until the next Rebuild.
func (f *Redis) Deleted(ctx context.Context, rows int) error {
	return f.failed(f.do(ctx, "hincrby", f.records, deletedRows, rows).Err())
}

// deletedRows is the field of the records that counts deleted rows. No generation has it for an id.
const deletedRows = "deleted"

// deleted returns how many rows were deleted since the filter was first built. A value that is no
// number counts as 0.
func (f *Redis) deleted(ctx context.Context) (uint64, error) {
	text, err := f.do(ctx, "hget", f.records, deletedRows).Text()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	n, _ := strconv.ParseUint(text, 10, 64)
	return n, err
}

// State asks Redis what has become of the filter. Redis counts the bits that are set, which takes
// it about 0.1 ms for each MB of them.
func (f *Redis) State(ctx context.Context) (State, error) {
	d, err := f.fetch(ctx, f.allTries())
	if err != nil {
		return State{}, f.failed(err)
	}
	s, err := f.state(ctx, &d.descriptor)
	return s, f.failed(err)
}

// state is State for the descriptor d.
func (f *Redis) state(ctx context.Context, d *descriptor) (s State, err error) {
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
	if s.SetBits, s.LostSegments, err = f.count(ctx, g); err != nil {
		return State{}, err
	}
	s.Keys = shape.estimate(s.SetBits)
	deleted, err := f.deleted(ctx)
	s.Deleted = max(deleted, g.Deleted) - g.Deleted
	return s, err
}

func (f *Redis) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bloom: filter %s: %w", f.name, err)
}

// newLocker makes the Locker by which one process rebuilds at a time. It saves work only: if the
// lock fails, the descriptor still keeps two rebuilds apart.
func (f *Redis) newLocker() (*lock.Locker, error) {
	prefix, _ := f.lockName()
	return lock.NewRedis(f.rdb, &lock.LockerOptions{Prefix: prefix, Timeout: min(f.allTries(), time.Minute)})
}

// lockName is that of the lock, and its prefix, which is of limited length.
func (f *Redis) lockName() (prefix, name string) {
	const what = "bloom-rebuild:"
	if p := f.options.Prefix + "::" + what; len(p) <= 64 {
		return p, f.name
	}
	return what, f.options.Prefix + "/" + f.name
}
