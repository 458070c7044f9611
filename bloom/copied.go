package bloom

import (
	"math/bits"
	"sync/atomic"
)

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
	for i := 0; len(rest) > 0; i++ {
		var w uint64
		if len(rest) >= 8 {
			w, rest = word(rest), rest[8:]
		} else {
			w, rest = short(rest), ""
		}
		if w != 0 {
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
