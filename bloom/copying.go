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
)

// The copy is made in this order, so that it has each key that was added before it is trusted:
//
//	the epoch is read    if it is another when the copy is done, something may have been missed:
//	                     the copy is made again
//	it is registered     what this process adds, and what it hears that others have added, goes to
//	                     it from now on
//	the descriptor is read once more: its generation was the active one then
//	its segments are fetched
//	it serves
//
// A key that was announced before the copy was registered had been written to the active generation
// before that. So it is in what is fetched, if this generation was still the active one after that.
// A key that is announced later is received. All Adds are announced, whatever generation they went
// to, so the copy has them all, also when its generation has been replaced and the next one is
// being fetched. And Redis may lose the bits or the descriptor without the copy becoming wrong.

// errOutdated ends the making of a copy: an announcement may have been lost meanwhile.
var errOutdated = errors.New("an announcement may have been lost meanwhile")

// calm is the pace at which Redis is asked for what was not there.
func (r *Replica) interval() time.Duration { return max(r.options.MaxStaleness, minRefetch) }

// seldom is the pace at which the descriptor is looked at though nothing was announced: the process
// that activates a generation may die before it has announced that.
const slowFactor = 15

// run keeps the copy until Close.
func (r *Replica) run() {
	short := minRefetch
	for {
		began, wait, err := time.Now(), r.interval(), errOutdated
		var one sync.WaitGroup
		one.Go(func() { wait, err = r.refresh() }) // which a hook of the client might end
		one.Wait()
		if err != nil {
			r.sleep(short/2+rand.N(short/2), nil)
			short = min(2*short, r.interval())
		} else {
			short = minRefetch
			r.sleep(min(time.Since(began), r.interval()), nil) // however often something is missed, half of the time nothing is fetched
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

// keep makes the copy if there is none of the active generation that is of the present epoch. It
// answers when to look again.
func (r *Replica) refresh() (time.Duration, error) {
	for {
		epoch := r.epoch.Load()
		if epoch == 0 {
			return slowFactor * r.interval(), nil // nothing can be heard yet: the first poll raises it
		}
		if r.watch.rolledBack.Load() {
			return 0, errOutdated // what is there may have lost keys
		}
		d, err := r.fetchDescriptor(r.ctx, r.longTimeout())
		if err != nil {
			return 0, err
		}
		g := d.Active
		r.tooLarge.Store(g != nil && g.shape().bytes() > r.options.MaxReplicaBytes)
		switch c := r.serving.Load(); {
		case g == nil:
			r.discard()
			return r.interval(), nil
		case r.tooLarge.Load():
			r.discard()
			return slowFactor * r.interval(), nil
		case c == nil || c.id != g.ID || c.epoch != epoch:
			if before := r.copyOf(g); before != nil {
				return r.fetchAll(g, before.refetch(epoch))
			}
			next := newCopied(g)
			r.incoming.Store(next)
		default:
			return slowFactor * r.interval(), nil
		}
	}
}

// registered is the copy of a generation that keys are added to already.
func (r *Replica) copyOf(g *generation) *bitmapCopy {
	for _, c := range []*bitmapCopy{r.serving.Load(), r.incoming.Load()} {
		if c != nil && c.id == g.ID {
			return c
		}
	}
	return nil
}

// make fetches all segments, and has the copy serve.
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

// fetchSome fetches segments from one to before another, of which no more is read than they may
// have.
func (r *Replica) fetchSegments(g *generation, next *bitmapCopy, from, to uint64) error {
	ctx, cancel := context.WithTimeout(r.ctx, max(r.longTimeout(), time.Second))
	defer cancel()
	cmds := make([]redis.Cmder, 0, to-from)
	for s := from; s < to; s++ {
		cmds = append(cmds, redis.NewStringCmd(ctx, "getrange", segmentKey(r.options.Prefix, r.name, g.ID, s), 0, headerBytes+int64(g.Bits/8)+tagBytes)) // one byte more than it should have
	}
	if err := r.conn.Send(ctx, cmds); err != nil {
		return err
	}
	for i, cmd := range cmds {
		raw, err := cmd.(*redis.StringCmd).Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // what is of another type is no segment
			return err
		}
		next.setSegment(g, from+uint64(i), raw)
	}
	return nil
}

// drop frees the copy: Redis is asked.
func (r *Replica) discard() {
	r.incoming.Store(nil)
	r.serving.Store(nil)
}

// copied is a copy of a generation's bits. Keys are added to it; the rest is not changed once it
// serves.
type bitmapCopy struct {
	bitmap
	id    string
	epoch uint64   // in which its first segment was fetched
	lost  []uint64 // a bit for each segment that Redis has lost; nil: none
}

func newCopied(g *generation) *bitmapCopy {
	return &bitmapCopy{bitmap: *newBitmap(g.shape()), id: g.ID}
}

// again is a copy of the same generation that is being fetched anew, into the same bits: what they
// have is in Redis too, or was lost there.
func (b *bitmapCopy) refetch(epoch uint64) *bitmapCopy {
	next := &bitmapCopy{bitmap: b.bitmap, id: b.id, epoch: epoch}
	if b.lost != nil {
		next.lost = append([]uint64(nil), b.lost...)
	}
	return next
}

// take sets the bits of a segment, as Redis holds it, or all if it is not that segment of this
// generation any more: then any key may have been in it. Keys that were not in Redis, as it was not
// needed yet, is zero.
func (b *bitmapCopy) setSegment(g *generation, segment uint64, raw string) {
	words := b.segmentWords(segment)
	rest, ok := g.bitsOf(segment, raw)
	if !ok {
		b.markLost(segment, words)
		return
	}
	for i := 0; len(rest) > 0; i, rest = i+1, rest[8:] {
		if w := word(rest); w != 0 {
			atomic.OrUint64(&words[i], bits.Reverse64(bits.ReverseBytes64(w))) // Redis counts the bits of a byte from its greatest; keys are added meanwhile
		}
	}
}

func (b *bitmapCopy) markLost(segment uint64, words []uint64) {
	if b.lost == nil {
		b.lost = make([]uint64, (b.segments+63)/64)
	}
	b.lost[segment/64] |= 1 << (segment % 64)
	for i := range words {
		atomic.StoreUint64(&words[i], ^uint64(0))
	}
}

// isGone tells whether a key is in a segment that Redis has lost.
func (b *bitmapCopy) inLostSegment(h *hash) bool {
	if b.lost == nil {
		return false
	}
	s := b.segment(h)
	return b.lost[s/64]&(1<<(s%64)) != 0
}

// lost is how many segments are.
func (b *bitmapCopy) lostSegments() (n int) {
	for _, w := range b.lost {
		n += bits.OnesCount64(w)
	}
	return n
}
