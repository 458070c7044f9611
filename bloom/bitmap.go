package bloom

import (
	"math"
	mathbits "math/bits"
	"sync/atomic"
)

// bitmap is the bits of a filter in this process. It may be read and added to at the same time; a
// bit is never cleared.
type bitmap struct {
	shape
	words   []uint64 // segment after segment; bit i of a segment is bit i%64 of its word i/64
	inverse uint64   // of the bits of a segment: 2^64 divided by them
}

func newBitmap(s shape) *bitmap {
	return bitmapOf(s, make([]uint64, s.total()/64))
}

func bitmapOf(s shape, words []uint64) *bitmap {
	return &bitmap{shape: s, words: words, inverse: math.MaxUint64 / s.bits}
}

// reduce returns x modulo bits. It does without a division, which would take longer than the rest of a
// lookup (Barrett's reduction: the quotient is at most one too small). inverse is that of bits.
func reduce(x, bits, inverse uint64) uint64 {
	quotient, _ := mathbits.Mul64(x, inverse)
	less := x - quotient*bits - bits
	return less + bits&uint64(int64(less)>>63) // if it is below zero; no branch, which would be guessed wrong half of the time
}

// segmentWords is where a segment's words are.
func (b *bitmap) segmentWords(s uint64) []uint64 {
	n := b.bits / 64
	return b.words[s*n : (s+1)*n]
}

// bitAt is a bit of a segment, as the lowest of what it answers; the others are any.
func bitAt(words []uint64, x, bits, inverse uint64) uint64 {
	at := reduce(x, bits, inverse)
	return atomic.LoadUint64(&words[at/64]) >> (at % 64)
}

// has tells whether all bits of a key are set. It looks at several before it branches: a processor
// that guesses wrong loses more time than a look takes. Of the keys that are not there, all but one
// in sixteen are found out by the first four.
func (b *bitmap) has(h *hash) bool {
	words, k, n, inv := b.segmentWords(b.segment(h)), b.k, b.bits, b.inverse // else each is loaded again after each look
	h0, h1, h2, h3 := h[0], h[1], h[2], h[3]
	all := uint64(1) // one bit
	i := uint64(0)
	for ; i+4 <= k; i += 4 { // see location
		all &= bitAt(words, h0+i*h2, n, inv) & bitAt(words, h1+(i+1)*h3, n, inv) & bitAt(words, h0+(i+2)*h3, n, inv) & bitAt(words, h1+(i+3)*h2, n, inv)
		if all == 0 {
			return false
		}
	}
	for ; i < k; i++ {
		all &= bitAt(words, h.location(i), n, inv)
	}
	return all != 0
}

// add sets the bits of a key, and answers how many of them were not.
func (b *bitmap) add(h *hash) (set int) {
	words := b.segmentWords(b.segment(h))
	for i := range b.k {
		at := reduce(h.location(i), b.bits, b.inverse)
		if bit := uint64(1) << (at % 64); atomic.LoadUint64(&words[at/64])&bit == 0 && atomic.OrUint64(&words[at/64], bit)&bit == 0 {
			set++
		}
	}
	return set
}

// count is the number of bits that are set.
func (b *bitmap) count() (n uint64) {
	for i := range b.words {
		n += uint64(mathbits.OnesCount64(atomic.LoadUint64(&b.words[i])))
	}
	return n
}

// estimate is how many keys have set so many of all bits (Swamidass and Baldi, 2007).
func (s shape) estimate(set uint64) uint64 {
	m := float64(s.total())
	fill := float64(set) / m
	if fill >= 1 {
		return math.MaxUint64
	}
	return uint64(-m/float64(s.k)*math.Log1p(-fill) + 0.5)
}
