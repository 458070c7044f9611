package bloom

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/wording"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// Replica is a copy of a Redis filter in this process's memory. A lookup takes nanoseconds and no
// round trip. A Replica is safe for concurrent use. Operations other than lookups are those of
// the Redis filter.
//
// A lookup finds each key that this process has added, with this Replica or its Redis filter,
// once Add has returned nil (for rows that are being inserted, once committed of Inserting has). It
// finds the keys that other processes add, or other filters in this process, normally within
// milliseconds, and always within Options.MaxStaleness. All Adds are announced by numbered
// messages, and the Replica polls the last number four times within MaxStaleness.
// MightContainFresh finds the keys immediately.
//
// A Replica costs the filter's size in memory (State.Bits / 8 bytes, and twice that while it
// copies a new generation), a subscription, and the polls. While it makes the copy, or makes it
// again because a message may have been missed, lookups ask Redis for the keys that the copy
// lacks. If Redis is down, the Replica continues to refuse keys until it detects the loss of the
// connection, and always for less than MaxStaleness. After that, a key that the copy lacks is
// "maybe", with an error. A filter larger than Options.MaxReplicaBytes is not copied: all lookups
// ask Redis.
type Replica struct {
	*Redis

	// These fields are read by each lookup.
	start        time.Time // origin of the times in trustedUntil
	trustedUntil atomic.Int64
	epoch        atomic.Uint64
	serving      atomic.Pointer[bitmapCopy]
	lookups      lookupCounters
	incoming     atomic.Pointer[bitmapCopy] // copy of another generation, which is being fetched

	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	wakeup     chan struct{}
	copies     atomic.Int64
	tooLarge   atomic.Bool
}

// NewReplica creates the Replica of filter, which can have only one: a second is an error. It
// does no I/O. In the background it begins to subscribe, and to fetch the bits. Close, or Close
// of the filter, ends that.
func NewReplica(filter *Redis) (*Replica, error) {
	if filter == nil {
		return nil, errors.New("bloom: NewReplica: the filter is nil")
	}
	filter.mu.Lock()
	defer filter.mu.Unlock()
	if filter.closed {
		return nil, wording.Errorf("bloom: filter %s: %w", filter.name, errClosed)
	}
	r := &Replica{Redis: filter, start: time.Now(), wakeup: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if !filter.replica.CompareAndSwap(nil, r) {
		r.cancel()
		return nil, fmt.Errorf("bloom: filter %s: it already has a replica", filter.name)
	}
	filter.bus.Register(generationName, nil, func(int, uint64) { r.wake() })
	filter.bus.Listen()
	filter.startWatch()
	r.background.Go(r.run)
	return r, nil
}

// Close ends the subscription and the background work, and frees the copy. After that, all
// lookups ask the Redis filter, which stays open. Close may be called again, and always returns
// nil.
func (r *Replica) Close() error {
	r.cancel()
	r.bus.Close()
	r.background.Wait()
	r.discard()
	r.watch.suspend()
	return nil
}

// MightContain reports whether a key may have been added. False means that it certainly was not
// (see Replica). If the copy can decide, MightContain ignores ctx and returns no error. Otherwise
// it is Redis.MightContain.
func (r *Replica) MightContain(ctx context.Context, key string) (bool, error) {
	h := bitmap.HashOf(key)
	if may, known := r.lookupLocal(&h); known {
		return may, nil
	}
	maybe, err := r.lookup(ctx, []bitmap.Hash{h})
	return maybe[0], err
}

// MightContainNow is MightContain without a round trip. known is false if Redis would have to be
// asked.
func (r *Replica) MightContainNow(key string) (may, known bool) {
	h := bitmap.HashOf(key)
	return r.lookupLocal(&h)
}

func (r *Replica) lookupLocal(h *bitmap.Hash) (may, known bool) {
	trust := r.trustedUntil.Load() // first: see upToDate
	c := r.serving.Load()
	switch {
	case c == nil:
		return true, false
	case !c.Has(h):
		if r.upToDate(c, trust) {
			r.lookups.count(false)
			return false, true
		}
		return true, false
	case c.lost != nil && c.inLostSegment(h):
		r.counts.lost.Add(1)
	default:
		r.lookups.count(true)
	}
	return true, true
}

// upToDate reports whether a key that c lacks was certainly not added.
//
// The caller must load trustedUntil, passed as trust, before it loads the copy, and the copy
// before its bits. Then every key announced before the poll that set trustedUntil was sent has
// been added to these bits, or has raised the epoch. If the caller loaded trustedUntil later, it
// could belong to a poll that includes a key that this process added after the bits were read.
// The clock is read last: a process that was suspended does not know what was announced during
// that time.
func (r *Replica) upToDate(c *bitmapCopy, trust int64) bool {
	return c.epoch == r.epoch.Load() && (int64(time.Since(r.start)) < trust)
}

// MightContainMany is MightContain for many keys. While the copy is not up to date, it asks Redis
// for the keys that the copy lacks, in one round trip to each server. The error is that of some
// of these keys.
func (r *Replica) MightContainMany(ctx context.Context, keys []string) ([]bool, error) {
	maybe := make([]bool, len(keys))
	trust := r.trustedUntil.Load() // first: see upToDate
	c := r.serving.Load()
	if c == nil {
		return r.Redis.MightContainMany(ctx, keys)
	}
	var missing []int
	var hashes []bitmap.Hash
	lost := 0
	for i, key := range keys {
		h := bitmap.HashOf(key)
		if maybe[i] = c.Has(&h); !maybe[i] {
			missing, hashes = append(missing, i), append(hashes, h)
		} else if c.inLostSegment(&h) {
			lost++
		}
	}
	r.counts.lost.Add(int64(lost))
	r.counts.present.Add(int64(len(keys) - len(missing) - lost))
	if len(missing) == 0 || r.upToDate(c, trust) {
		r.counts.absent.Add(int64(len(missing)))
		return maybe, nil
	}
	found, err := r.lookup(ctx, hashes)
	for j, i := range missing {
		maybe[i] = found[j]
	}
	return maybe, err
}

// MightContainFresh is MightContainMany of the Redis filter. It takes a round trip, and finds
// each key whose Add has returned nil before, in any process.
func (r *Replica) MightContainFresh(ctx context.Context, keys []string) ([]bool, error) {
	return r.Redis.MightContainMany(ctx, keys)
}

// Add adds a key to the Redis filter and to the copy: see Redis.Add.
func (r *Replica) Add(ctx context.Context, key string) error { return r.Redis.Add(ctx, key) }

// AddMany is Add for many keys, in few round trips.
func (r *Replica) AddMany(ctx context.Context, keys []string) error {
	return r.Redis.AddMany(ctx, keys)
}

// Inserting adds keys whose rows are being inserted: see Redis.Inserting.
func (r *Replica) Inserting(ctx context.Context, keys []string) (committed func(context.Context) error, err error) {
	return r.Redis.Inserting(ctx, keys)
}

// Rebuild replaces the Redis filter with a new one, which the Replica then copies: see
// Redis.Rebuild.
func (r *Replica) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	return r.Redis.Rebuild(ctx, source, options)
}

// Maintain rebuilds the Redis filter when necessary: see Redis.Maintain.
func (r *Replica) Maintain(ctx context.Context, source Source, options *MaintainOptions) error {
	return r.Redis.Maintain(ctx, source, options)
}

// Hidden reports a key that the filter has refused although its row exists: see Redis.Hidden.
func (r *Replica) Hidden(ctx context.Context, key string) error { return r.Redis.Hidden(ctx, key) }

// NotFound records the number of false positives: see Redis.NotFound.
func (r *Replica) NotFound(keys int) { r.Redis.NotFound(keys) }

// Deleted reports the number of deleted rows: see Redis.Deleted.
func (r *Replica) Deleted(ctx context.Context, rows int) error { return r.Redis.Deleted(ctx, rows) }

// State reads the state of the Redis filter: see Redis.State.
func (r *Replica) State(ctx context.Context) (State, error) { return r.Redis.State(ctx) }

// Stats returns the counts of this process, including those of the Replica.
func (r *Replica) Stats() Stats { return r.Redis.Stats() }

// addAll adds keys that this process has added to Redis, before they are announced. A process
// does not receive its own announcements.
func (r *Replica) addAll(hashes []bitmap.Hash) {
	for i := range hashes {
		r.add(&hashes[i])
	}
}

// add adds a key to the incoming copy first, and then to the serving one. The incoming copy
// becomes the serving one in the opposite order, so that no key is missed.
func (r *Replica) add(h *bitmap.Hash) {
	if c := r.incoming.Load(); c != nil {
		c.Add(h)
	}
	if c := r.serving.Load(); c != nil {
		c.Add(h)
	}
}

// addStats adds the counts of the Replica.
func (r *Replica) addStats(s *Stats) {
	trust := r.trustedUntil.Load() // first: see upToDate
	if c := r.serving.Load(); c != nil {
		s.Copied, s.CopyBytes, s.LostCopied = r.upToDate(c, trust), c.Bytes(), int64(c.lostSegments())
	}
	if c := r.incoming.Load(); c != nil {
		s.CopyBytes += c.Bytes()
	}
	r.lookups.addTo(s)
	s.TooLarge, s.Copies, s.Gaps, s.Received =
		r.tooLarge.Load(), r.copies.Load(), int64(r.epoch.Load()), r.bus.Stats().Received
}

// busListener passes the announcements of a filter to its Replica, if there is one. A filter
// without a Replica does not subscribe.
type busListener struct{ filter *Redis }

// Received adds keys that other processes have added.
func (b busListener) Received(body []byte) {
	if replica := b.filter.replica.Load(); replica != nil {
		decodeHashes(body, replica.add)
	}
}

// Clear makes the Replica fetch the copy again, because announcements may have been missed.
func (b busListener) Clear(int) {
	if replica := b.filter.replica.Load(); replica != nil {
		replica.epoch.Add(1)
		replica.wake()
	}
}

// Void is Clear for announcements that were certainly missed.
func (b busListener) Void(rng int) { b.Clear(rng) }

// Trust lets the copy refuse keys until then. The bus calls Received and Clear before the Trust
// that depends on them, and a lookup reads in the opposite order.
func (b busListener) Trust(_ int, until time.Time) {
	if replica := b.filter.replica.Load(); replica != nil {
		replica.trustedUntil.Store(int64(until.Sub(replica.start)))
	}
}

// Forget does nothing: filters do not announce invalidated keys.
func (b busListener) Forget(uint64) {}

// wake makes the Replica read the descriptor.
func (r *Replica) wake() {
	select {
	case r.wakeup <- struct{}{}:
	default:
	}
}
