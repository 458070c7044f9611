package bloom

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// A copy is made in this order, so that it contains each key that was added before the copy is
// trusted:
//
//	The epoch is read. If it has changed when the copy is complete, an announcement may have
//	been missed, and the copy is made again.
//	The copy is registered. From now on, keys that this process adds, and keys that other
//	processes announce, are added to it.
//	The descriptor is read again, to see that the generation of the copy is still active.
//	The segments are fetched.
//	The copy serves lookups.
//
// A key that was announced before the copy was registered had already been written to the active
// generation. So it is in the fetched segments, if this generation was still active after that. A
// key that is announced later is received. Every Add is announced, no matter which generation it
// was written to. So the copy contains all keys, even if its generation has been replaced and the
// next one is being fetched. Redis may also lose the bits or the descriptor without making the
// copy wrong.

// errOutdated ends the making of a copy, because an announcement may have been lost since it
// began.
var errOutdated = errors.New("an announcement may have been lost")

// interval returns the interval at which Redis is asked again for a missing descriptor or
// generation.
func (r *Replica) interval() time.Duration { return max(r.options.MaxStaleness, minRefetch) }

// slowFactor times interval is the interval at which the descriptor is read without an
// announcement. The process that activates a generation may die before it announces that.
const slowFactor = 15

// run keeps the copy up to date until Close.
func (r *Replica) run() {
	short := minRefetch
	for {
		began, wait, err := time.Now(), r.interval(), errOutdated
		var one sync.WaitGroup
		// The goroutine protects run from a hook of the client that calls runtime.Goexit.
		one.Go(func() { wait, err = r.refresh() })
		one.Wait()
		if err != nil {
			r.sleep(short/2+rand.N(short/2), nil)
			short = min(2*short, r.interval())
		} else {
			short = minRefetch
			// The copy is fetched for at most half of the time, however often announcements are
			// missed.
			r.sleep(min(time.Since(began), r.interval()), nil)
			r.sleep(wait, r.wakeup)
		}
		if r.ctx.Err() != nil {
			return
		}
	}
}

func (r *Replica) sleep(d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.ctx.Done():
	case <-early:
	case <-timer.C:
	}
}

// refresh makes a copy, unless there is one of the active generation and the present epoch. It
// returns when to check again.
func (r *Replica) refresh() (time.Duration, error) {
	for {
		epoch := r.epoch.Load()
		if epoch == 0 {
			// announcements are not received before the first poll, which raises the epoch
			return slowFactor * r.interval(), nil
		}
		if r.watch.rolledBack.Load() {
			return 0, errOutdated // Redis may have lost keys
		}
		d, err := r.fetchDescriptor(r.ctx, r.longTimeout())
		if err != nil {
			return 0, err
		}
		g := d.Active
		r.tooLarge.Store(g != nil && g.shape().Bytes() > r.options.MaxReplicaBytes)
		switch c := r.serving.Load(); {
		case g == nil || r.unusable(g) != nil:
			r.discard()
			return r.interval(), nil
		case r.tooLarge.Load():
			r.discard()
			return slowFactor * r.interval(), nil
		case c == nil || c.id != g.ID || c.epoch != epoch:
			if before := r.copyOf(g); before != nil {
				return r.fetchAll(g, before.refetch(epoch))
			}
			next := newBitmapCopy(g)
			r.incoming.Store(next)
		default:
			return slowFactor * r.interval(), nil
		}
	}
}

// copyOf returns the copy of a generation that already receives keys, or nil.
func (r *Replica) copyOf(g *generation) *bitmapCopy {
	for _, c := range []*bitmapCopy{r.serving.Load(), r.incoming.Load()} {
		if c != nil && c.id == g.ID {
			return c
		}
	}
	return nil
}

// fetchAll fetches all segments, and makes the copy serve.
func (r *Replica) fetchAll(g *generation, next *bitmapCopy) (time.Duration, error) {
	step := min(max(1, maxTrip/(headerBytes+g.Bits/8)), conn.MaxPipeline)
	for from := uint64(0); from < g.Segments; from += step {
		if err := r.fetchSegments(g, next, from, min(from+step, g.Segments)); err != nil {
			return 0, err
		}
		if next.epoch != r.epoch.Load() {
			return 0, errOutdated
		}
	}
	r.serving.Store(next)
	r.incoming.Store(nil) // in this order: see add
	r.copies.Add(1)
	return slowFactor * r.interval(), nil
}

// fetchSegments fetches the segments from up to but not including to. It reads no more than the
// expected size of each, and one byte.
func (r *Replica) fetchSegments(g *generation, next *bitmapCopy, from, to uint64) error {
	ctx, cancel := context.WithTimeout(r.ctx, max(r.longTimeout(), time.Second))
	defer cancel()
	cmds := make([]redis.Cmder, 0, to-from)
	for s := from; s < to; s++ {
		// The end is inclusive: this reads one byte more than a segment has, to detect longer
		// strings.
		cmds = append(cmds, redis.NewStringCmd(ctx, "getrange", segmentKey(r.options.Prefix, r.name, g.ID, s), 0,
			headerBytes+int64(g.Bits/8)+tagBytes))
	}
	if err := r.conn.Send(ctx, cmds); err != nil {
		return err
	}
	for i, cmd := range cmds {
		raw, err := cmd.(*redis.StringCmd).Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // a value of another type is a lost segment
			return err
		}
		next.setSegment(g, from+uint64(i), raw)
	}
	return nil
}

// discard frees the copies. After that, lookups ask Redis.
func (r *Replica) discard() {
	r.incoming.Store(nil)
	r.serving.Store(nil)
}

// bitmapCopy is a copy of a generation's bits. Keys are added to it. The other fields do not
// change once it serves.
type bitmapCopy struct {
	bitmap.Bitmap
	id    string
	epoch uint64   // epoch in which the first segment was fetched
	lost  []uint64 // one bit for each segment that Redis has lost; nil if there is none
}

func newBitmapCopy(g *generation) *bitmapCopy {
	return &bitmapCopy{Bitmap: *bitmap.New(g.shape()), id: g.ID}
}

// refetch returns a copy of the same generation that is to be fetched again, into the same bits.
// All bits that are set are set in Redis too, or were lost there.
func (b *bitmapCopy) refetch(epoch uint64) *bitmapCopy {
	next := &bitmapCopy{Bitmap: b.Bitmap, id: b.id, epoch: epoch}
	if b.lost != nil {
		next.lost = append([]uint64(nil), b.lost...)
	}
	return next
}

// setSegment sets the bits of a segment from raw, the string in Redis. If raw is not that segment
// of this generation, any key may have been in it, so it sets all bits.
func (b *bitmapCopy) setSegment(g *generation, segment uint64, raw string) {
	words := b.SegmentWords(segment)
	rest, ok := g.bitsOf(segment, raw)
	if !ok {
		b.markLost(segment, words)
		return
	}
	for i := 0; len(rest) > 0; i, rest = i+1, rest[8:] {
		if w := bitmap.Word(rest); w != 0 {
			// Redis counts the bits of a byte from the highest. Keys may be added concurrently.
			atomic.OrUint64(&words[i], bits.Reverse64(bits.ReverseBytes64(w)))
		}
	}
}

func (b *bitmapCopy) markLost(segment uint64, words []uint64) {
	if b.lost == nil {
		b.lost = make([]uint64, (b.Segments+63)/64)
	}
	b.lost[segment/64] |= 1 << (segment % 64)
	for i := range words {
		atomic.StoreUint64(&words[i], ^uint64(0))
	}
}

// inLostSegment reports whether a key belongs to a segment that Redis has lost.
func (b *bitmapCopy) inLostSegment(h *bitmap.Hash) bool {
	if b.lost == nil {
		return false
	}
	s := b.Segment(h)
	return b.lost[s/64]&(1<<(s%64)) != 0
}

// lostSegments returns the number of segments that Redis has lost.
func (b *bitmapCopy) lostSegments() (n int) {
	for _, w := range b.lost {
		n += bits.OnesCount64(w)
	}
	return n
}
