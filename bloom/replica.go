package bloom

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Replica is a copy of a filter in Redis in this process's memory: a lookup takes nanoseconds and
// no trip. It is safe for concurrent use. All that is no lookup is the Redis filter's own.
//
// A lookup finds each key that this process has added, by this Replica or its Redis filter, from
// when Add (for rows that are being inserted, Admit's committed) has returned nil. It finds the
// keys of other processes, and of other filters in this one, within milliseconds as a rule, and
// within Options.MaxStaleness for certain: all Adds are announced by numbered messages, and the
// Replica asks for the last number four times within MaxStaleness. MightContainFresh finds them at
// once.
//
// A Replica costs the filter's size in memory (State.Bits / 8 bytes; twice that while a new
// generation is copied), a subscription, and the polls. While the copy is being made, or again
// after a message may have been missed, lookups ask Redis for the keys that the copy lacks. Without
// Redis a Replica goes on until the connection is known to be lost, and for less than MaxStaleness
// in any case; then a key that it lacks is "maybe", with the error. A filter larger than
// Options.MaxReplicaBytes is not copied: all lookups ask Redis. Rebuild, Maintain and Add are those
// of the Redis filter.
type Replica struct {
	*Redis

	// Read by each lookup.
	start        time.Time // of the clock that trust is on
	trustedUntil atomic.Int64
	epoch        atomic.Uint64
	serving      atomic.Pointer[bitmapCopy]
	lookups      lookupCounters
	incoming     atomic.Pointer[bitmapCopy] // is being fetched, for another generation than is serving

	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	wakeup     chan struct{}
	copies     atomic.Int64
	tooLarge   atomic.Bool
}

// NewReplica makes the copy of f, which has one at most: a second is an error. It does no I/O
// itself: it begins to listen, and to fetch the bits, in the background. Close ends that, as
// f.Close does.
func NewReplica(filter *Redis) (*Replica, error) {
	if filter == nil {
		return nil, errors.New("bloom: a replica of a nil filter")
	}
	filter.mu.Lock()
	defer filter.mu.Unlock()
	if filter.closed {
		return nil, fmt.Errorf("bloom: filter %s: %w", filter.name, errClosed)
	}
	r := &Replica{Redis: filter, start: time.Now(), wakeup: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if !filter.replica.CompareAndSwap(nil, r) {
		r.cancel()
		return nil, fmt.Errorf("bloom: filter %s: it has a replica already", filter.name)
	}
	filter.bus.Register(generationName, func(int, uint64) { r.wake() })
	filter.bus.Listen()
	filter.startWatch()
	r.background.Go(r.run)
	return r, nil
}

// Close ends the subscription and the background work, and frees the copy. All lookups go to the
// Redis filter from then on, which stays open. Close may be called again, and always returns nil.
func (r *Replica) Close() error {
	r.cancel()
	r.bus.Close()
	r.background.Wait()
	r.discard()
	r.watch.suspend()
	return nil
}

// MightContain reports whether a key may have been added: false means that it certainly was not
// (see Replica). Where the copy can say, MightContain ignores ctx and returns no error. Otherwise
// it is Redis.MightContain.
func (r *Replica) MightContain(ctx context.Context, key string) (bool, error) {
	h := hashOf(key)
	if may, known := r.lookupLocal(&h); known {
		return may, nil
	}
	maybe, err := r.lookup(ctx, []hash{h})
	return maybe[0], err
}

// MightContainNow is MightContain without a trip: it is not known where Redis would have to be
// asked.
func (r *Replica) MightContainNow(key string) (may, known bool) {
	h := hashOf(key)
	return r.lookupLocal(&h)
}

func (r *Replica) lookupLocal(h *hash) (may, known bool) {
	trust := r.trustedUntil.Load() // before all else: see says
	c := r.serving.Load()
	switch {
	case c == nil:
		return true, false
	case !c.has(h):
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

// says tells whether what c has not was certainly not added.
//
// trust was read before the copy, and that before its bits: then all that had been announced when
// the poll was sent which the trust is from has been added to these bits, or has raised the epoch.
// A trust that was read later could be that of a poll which has seen a key that was added, here,
// after its bits were read. The clock is read last, and now: a process that was suspended does not
// know what has been announced meanwhile.
func (r *Replica) upToDate(c *bitmapCopy, trust int64) bool {
	return c.epoch == r.epoch.Load() && (int64(time.Since(r.start)) < trust)
}

// MightContainMany is MightContain for many keys. It asks Redis only for those that the copy lacks
// while it is not up to date, in one trip to each server. The error is that of some of these keys.
func (r *Replica) MightContainMany(ctx context.Context, keys []string) ([]bool, error) {
	maybe := make([]bool, len(keys))
	trust := r.trustedUntil.Load() // before all else: see says
	c := r.serving.Load()
	if c == nil {
		return r.Redis.MightContainMany(ctx, keys)
	}
	var missing []int
	var hashes []hash
	lost := 0
	for i, key := range keys {
		h := hashOf(key)
		if maybe[i] = c.has(&h); !maybe[i] {
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

// MightContainFresh is MightContainMany of the filter in Redis: it sees each Add that has returned
// nil before, in any process. It takes a trip.
func (r *Replica) MightContainFresh(ctx context.Context, keys []string) ([]bool, error) {
	return r.Redis.MightContainMany(ctx, keys)
}

// apply adds keys that this process has added to Redis, before they are announced: it does not hear
// of itself.
func (r *Replica) addAll(hashes []hash) {
	for i := range hashes {
		r.add(&hashes[i])
	}
}

// add adds a key to the copy that is under way first, and then to the one that serves: the one
// becomes the other in the opposite order, so that none is missed.
func (r *Replica) add(h *hash) {
	if c := r.incoming.Load(); c != nil {
		c.add(h)
	}
	if c := r.serving.Load(); c != nil {
		c.add(h)
	}
}

// stats adds what is counted of a Replica.
func (r *Replica) addStats(s *Stats) {
	trust := r.trustedUntil.Load() // before all else: see says
	if c := r.serving.Load(); c != nil {
		s.Copied, s.CopyBytes, s.LostCopied = r.upToDate(c, trust), c.bytes(), int64(c.lostSegments())
	}
	if c := r.incoming.Load(); c != nil {
		s.CopyBytes += c.bytes()
	}
	r.lookups.addTo(s)
	s.TooLarge, s.Copies, s.Gaps, s.Heard = r.tooLarge.Load(), r.copies.Load(), int64(r.epoch.Load()), r.bus.Stats().Heard
}

// ear is what the bus of a filter tells of: it goes to the filter's Replica, if there is one. A
// filter without one never listens.
type busListener struct{ filter *Redis }

// Told adds keys that others have added.
func (b busListener) Told(body []byte) {
	if replica := b.filter.replica.Load(); replica != nil {
		decodeHashes(body, replica.add)
	}
}

// Clear has the copy made again, since keys may have been added that were not heard of.
func (b busListener) Clear(int) {
	if replica := b.filter.replica.Load(); replica != nil {
		replica.epoch.Add(1)
		replica.wake()
	}
}

// Void is Clear where some were.
func (b busListener) Void(rng int) { b.Clear(rng) }

// Trust has the copy say "no" until then. Told and Clear come before the Trust that counts on them,
// and a lookup reads in the other order.
func (b busListener) Trust(_ int, until time.Time) {
	if replica := b.filter.replica.Load(); replica != nil {
		replica.trustedUntil.Store(int64(until.Sub(replica.start)))
	}
}

// Forget is for keys that are invalidated, which no filter announces.
func (b busListener) Forget(uint64) {}

// look has the descriptor looked at.
func (r *Replica) wake() {
	select {
	case r.wakeup <- struct{}{}:
	default:
	}
}
