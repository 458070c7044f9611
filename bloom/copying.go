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
func (r *Replica) calm() time.Duration { return max(r.options.MaxStaleness, pause) }

// seldom is the pace at which the descriptor is looked at though nothing was announced: the process
// that activates a generation may die before it has announced that.
const seldom = 15

// run keeps the copy until Close.
func (r *Replica) run() {
	short := pause
	for {
		began, wait, err := time.Now(), r.calm(), errOutdated
		var one sync.WaitGroup
		one.Go(func() { wait, err = r.keep() }) // which a hook of the client might end
		one.Wait()
		if err != nil {
			r.sleep(short/2+rand.N(short/2), nil)
			short = min(2*short, r.calm())
		} else {
			short = pause
			r.sleep(min(time.Since(began), r.calm()), nil) // however often something is missed, half of the time nothing is fetched
			r.sleep(wait, r.kick)
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
func (r *Replica) keep() (time.Duration, error) {
	for {
		epoch := r.epoch.Load()
		if epoch == 0 {
			return seldom * r.calm(), nil // nothing can be heard yet: the first poll raises it
		}
		if r.watch.back.Load() {
			return 0, errOutdated // what is there may have lost keys
		}
		d, err := r.fetch(r.ctx, r.allTries())
		if err != nil {
			return 0, err
		}
		g := d.Active
		r.tooLarge.Store(g != nil && g.shape().bytes() > r.options.MaxReplicaBytes)
		switch c := r.serving.Load(); {
		case g == nil:
			r.drop()
			return r.calm(), nil
		case r.tooLarge.Load():
			r.drop()
			return seldom * r.calm(), nil
		case c == nil || c.id != g.ID || c.epoch != epoch:
			if before := r.registered(g); before != nil {
				return r.make(g, before.again(epoch))
			}
			next := newCopied(g)
			r.underway.Store(next)
		default:
			return seldom * r.calm(), nil
		}
	}
}

// registered is the copy of a generation that keys are added to already.
func (r *Replica) registered(g *generation) *copied {
	for _, c := range []*copied{r.serving.Load(), r.underway.Load()} {
		if c != nil && c.id == g.ID {
			return c
		}
	}
	return nil
}

// make fetches all segments, and has the copy serve.
func (r *Replica) make(g *generation, next *copied) (time.Duration, error) {
	step := min(max(1, maxTrip/(headerBytes+g.Bits/8)), conn.MaxPipeline)
	for from := uint64(0); from < g.Segments; from += step {
		if err := r.fetchSome(g, next, from, min(from+step, g.Segments)); err != nil {
			return 0, err
		}
		if next.epoch != r.epoch.Load() {
			return 0, errOutdated
		}
	}
	r.serving.Store(next)
	r.underway.Store(nil) // in this order: see add
	r.copies.Add(1)
	return seldom * r.calm(), nil
}

// fetchSome fetches segments from one to before another, of which no more is read than they may
// have.
func (r *Replica) fetchSome(g *generation, next *copied, from, to uint64) error {
	ctx, cancel := context.WithTimeout(r.ctx, max(r.allTries(), time.Second))
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
		next.take(g, from+uint64(i), raw)
	}
	return nil
}

// drop frees the copy: Redis is asked.
func (r *Replica) drop() {
	r.underway.Store(nil)
	r.serving.Store(nil)
}

// copied is a copy of a generation's bits. Keys are added to it; the rest is not changed once it
// serves.
type copied struct {
	bitmap
	id    string
	epoch uint64   // in which its first segment was fetched
	gone  []uint64 // a bit for each segment that Redis has lost; nil: none
}

func newCopied(g *generation) *copied { return &copied{bitmap: *newBitmap(g.shape()), id: g.ID} }

// again is a copy of the same generation that is being fetched anew, into the same bits: what they
// have is in Redis too, or was lost there.
func (c *copied) again(epoch uint64) *copied {
	next := &copied{bitmap: c.bitmap, id: c.id, epoch: epoch}
	if c.gone != nil {
		next.gone = append([]uint64(nil), c.gone...)
	}
	return next
}

// take sets the bits of a segment, as Redis holds it, or all if it is not that segment of this
// generation any more: then any key may have been in it. Keys that were not in Redis, as it was not
// needed yet, is zero.
func (c *copied) take(g *generation, segment uint64, raw string) {
	words := c.segmentWords(segment)
	rest, ok := g.bitsOf(segment, raw)
	if !ok {
		c.lose(segment, words)
		return
	}
	for i := 0; len(rest) > 0; i, rest = i+1, rest[8:] {
		if w := word(rest); w != 0 {
			atomic.OrUint64(&words[i], bits.Reverse64(bits.ReverseBytes64(w))) // Redis counts the bits of a byte from its greatest; keys are added meanwhile
		}
	}
}

func (c *copied) lose(segment uint64, words []uint64) {
	if c.gone == nil {
		c.gone = make([]uint64, (c.segments+63)/64)
	}
	c.gone[segment/64] |= 1 << (segment % 64)
	for i := range words {
		atomic.StoreUint64(&words[i], ^uint64(0))
	}
}

// isGone tells whether a key is in a segment that Redis has lost.
func (c *copied) isGone(h *hash) bool {
	if c.gone == nil {
		return false
	}
	s := c.segment(h)
	return c.gone[s/64]&(1<<(s%64)) != 0
}

// lost is how many segments are.
func (c *copied) lost() (n int) {
	for _, w := range c.gone {
		n += bits.OnesCount64(w)
	}
	return n
}
