package bloom

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/bits-and-blooms/bloom/v3"
)

// shape describes the layout of a filter's bits: segments of equal size, and k bits for each key,
// all in one segment. So a key is looked up in one place, however large the filter is, and a lost
// segment affects only its own keys.
//
// A filter of one segment has exactly the bits of a filter of bits-and-blooms/bloom. A filter of
// several segments consists of several of these.
type shape struct {
	segments uint64
	bits     uint64 // of a segment; a multiple of 64
	k        uint64
}

const (
	// typicalBits is the size of the segments of all but the largest filters, 32 KiB each. With
	// smaller segments, the number of keys in each would vary more, which increases the rate of
	// false positives (by less than 0.4 % at 0.01 %). With larger segments, Redis would allocate a
	// whole segment for only a few keys.
	typicalBits = 1 << 18
	maxSegments = 1 << 16
	maxBits     = 1 << 26 // of a segment, so that no command blocks a server for long
	maxK        = 40

	minRate = 1e-9
	maxRate = 0.5
)

// shapeFor returns the shape of a filter that has this rate when it contains capacity keys: rate =
// (1 - exp(-kn/m))^k. bits-and-blooms takes m for the optimal k, and rounds k up, which makes the
// rate up to 8 % higher than requested at rates below 30 %. shapeFor computes m for a whole number
// k instead. Of the two whole numbers next to the optimum, it takes the one that needs fewer bits.
func shapeFor(capacity uint64, rate float64) (shape, error) {
	switch {
	case !(rate >= minRate && rate <= maxRate): // including NaN
		return shape{}, fmt.Errorf("rate %v: from %v to %v", rate, minRate, maxRate)
	case capacity == 0 || capacity > maxSegments*maxBits/64:
		return shape{}, fmt.Errorf("capacity %d: from 1 to %d", capacity, uint64(maxSegments*maxBits/64))
	}
	n := capacity
	if bits.UintSize == 32 {
		n = min(n, 1<<24) // the bits for more keys overflow a uint of 32 bits, and k does not depend on n
	}
	_, k := bloom.EstimateParameters(uint(n), rate)
	m := bitsFor(capacity, rate, k)
	if k > 1 {
		if fewer := bitsFor(capacity, rate, k-1); fewer <= m {
			m, k = fewer, k-1
		}
	}
	segments := min(max(1, (m+typicalBits-1)/typicalBits), maxSegments)
	s := shape{segments: segments, bits: ((m+segments-1)/segments + 63) &^ 63, k: uint64(k)}
	if err := s.check(); err != nil {
		return shape{}, fmt.Errorf("capacity %d at a rate of %v: %w", capacity, rate, err)
	}
	return s, nil
}

// bitsFor returns the number of bits needed if each key sets k of them.
func bitsFor(capacity uint64, rate float64, k uint) uint64 {
	set := math.Pow(rate, 1/float64(k)) // share of set bits
	return uint64(math.Ceil(-float64(k) * float64(capacity) / math.Log1p(-set)))
}

func (s shape) check() error {
	if s.segments == 0 || s.segments > maxSegments || s.bits == 0 || s.bits > maxBits || s.bits%64 != 0 || s.k == 0 ||
		s.k > maxK {
		return fmt.Errorf("%d segments of %d bits, %d bits per key: at most %d segments of %d bits, %d bits per key",
			s.segments, s.bits, s.k, maxSegments, maxBits, maxK)
	}
	return nil
}

// total returns the number of bits of all segments.
func (s shape) total() uint64 { return s.segments * s.bits }

// segment returns the index of the segment that h belongs to.
func (s shape) segment(h *hash) uint64 {
	at, _ := bits.Mul64(h[0], s.segments) // h[0] is location 0
	return at
}

// bitOffset returns the offset of bit i of a key in its segment.
func (s shape) bitOffset(h *hash, i uint64) uint64 { return h.location(i) % s.bits }

// bitmap contains the bits of a filter in this process. Lookups and additions may run
// concurrently. A bit is never cleared.
type bitmap struct {
	shape
	words   []uint64 // segment after segment; bit i of a segment is bit i%64 of its word i/64
	inverse uint64   // 2^64 divided by shape.bits, for reduce
}

func newBitmap(s shape) *bitmap {
	return bitmapOf(s, make([]uint64, s.total()/64))
}

func bitmapOf(s shape, words []uint64) *bitmap {
	return &bitmap{shape: s, words: words, inverse: math.MaxUint64 / s.bits}
}

// reduce returns x modulo modulus, by Barrett's reduction, whose quotient is at most one too small.
// inverse is 2^64 divided by modulus. A division would take longer than the rest of a lookup.
func reduce(x, modulus, inverse uint64) uint64 {
	quotient, _ := bits.Mul64(x, inverse)
	less := x - quotient*modulus - modulus
	// Add modulus if the result is negative. A branch would be mispredicted half of the time.
	return less + modulus&uint64(int64(less)>>63)
}

// segmentWords returns the words of segment s.
func (b *bitmap) segmentWords(s uint64) []uint64 {
	n := b.bits / 64
	return b.words[s*n : (s+1)*n]
}

// bitAt returns a word whose lowest bit is the bit of location x of a segment. The other bits are
// undefined.
func bitAt(words []uint64, x, bits, inverse uint64) uint64 {
	at := reduce(x, bits, inverse)
	return atomic.LoadUint64(&words[at/64]) >> (at % 64)
}

// has reports whether all bits of a key are set. It reads four bits before each branch, because a
// mispredicted branch costs more than reading a bit. The first four bits rule out all but one in
// sixteen of the missing keys.
func (b *bitmap) has(h *hash) bool {
	// Local copies, which the compiler does not reload after each atomic load.
	words, k, n, inv := b.segmentWords(b.segment(h)), b.k, b.bits, b.inverse
	h0, h1, h2, h3 := h[0], h[1], h[2], h[3]
	all := uint64(1) // only the lowest bit is used
	i := uint64(0)
	for ; i+4 <= k; i += 4 { // unrolled from location
		all &= bitAt(words, h0+i*h2, n, inv) & bitAt(words, h1+(i+1)*h3, n, inv) & bitAt(words, h0+(i+2)*h3, n,
			inv) & bitAt(words, h1+(i+3)*h2, n, inv)
		if all == 0 {
			return false
		}
	}
	for ; i < k; i++ {
		all &= bitAt(words, h.location(i), n, inv)
	}
	return all != 0
}

// add sets the bits of a key.
func (b *bitmap) add(h *hash) {
	words := b.segmentWords(b.segment(h))
	for i := range b.k {
		at := reduce(h.location(i), b.bits, b.inverse)
		if bit := uint64(1) << (at % 64); atomic.LoadUint64(&words[at/64])&bit == 0 {
			atomic.OrUint64(&words[at/64], bit)
		}
	}
}

// count returns the number of bits that are set.
func (b *bitmap) count() (n uint64) {
	for i := range b.words {
		n += uint64(bits.OnesCount64(atomic.LoadUint64(&b.words[i])))
	}
	return n
}

// estimate returns the estimated number of keys that have set this many bits (Swamidass and
// Baldi, 2007).
func (s shape) estimate(set uint64) uint64 {
	m := float64(s.total())
	fill := float64(set) / m
	if fill >= 1 {
		return math.MaxUint64
	}
	return uint64(-m/float64(s.k)*math.Log1p(-fill) + 0.5)
}

// bytes returns the size of the bits in bytes.
func (s shape) bytes() int64 { return int64(s.total() / 8) }

// hash contains everything that a filter needs of a key: the four base hashes of
// bits-and-blooms/bloom. They are MurmurHash3 x64 128 (Appleby, public domain) of the key, and of
// the key followed by a byte 1. They are the same in every process and version.
type hash [4]uint64

// location returns one of the values of bloom.Locations of bits-and-blooms. It follows Kirsch and
// Mitzenmacher, "Less Hashing, Same Performance", with two pairs of hashes.
func (h *hash) location(i uint64) uint64 { return h[i&1] + i*h[2+(i+i&1)&3>>1] }

const (
	c1 = 0x87c37b91114253d5
	c2 = 0x4cf5ad432745937f
)

// hashOf returns the hash of key. It allocates nothing, and avoids branches, because it takes
// most of the time of a lookup.
func hashOf(key string) (h hash) {
	var h1, h2 uint64
	n := uint64(len(key))
	rest := key
	for ; len(rest) >= 16; rest = rest[16:] {
		h1, h2 = block(h1, h2, word(rest), word(rest[8:]))
	}
	k1, k2 := tail(key, rest)
	x1, x2 := h1^scramble1(k1), h2^scramble2(k2)
	h[0], h[1] = finish(x1^n, x2^n)
	one := uint64(1) << (8 * (n & 7))
	switch left := n & 15; {
	case left < 8:
		x1 = h1 ^ scramble1(k1|one)
	case left < 15:
		x2 = h2 ^ scramble2(k2|one)
	default:
		x1, x2 = block(h1, h2, k1, k2|one)
	}
	h[2], h[3] = finish(x1^(n+1), x2^(n+1))
	return h
}

// hashesOf returns the hash of each of keys.
func hashesOf(keys []string) []hash {
	hashes := make([]hash, len(keys))
	for i, key := range keys {
		hashes[i] = hashOf(key)
	}
	return hashes
}

func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 |
		uint64(s[6])<<48 | uint64(s[7])<<56
}

// tail returns the bytes of a key that follow its blocks of 16 bytes, padded with zeros. It reads
// the last bytes of the key as one word, and shifts out the bytes that precede rest.
func tail(key, rest string) (k1, k2 uint64) {
	n := len(rest)
	switch {
	case n > 8:
		return word(rest), word(rest[n-8:]) >> (8 * (16 - n) & 63)
	case n == 8:
		return word(rest), 0
	case n == 0:
		return 0, 0
	case len(key) >= 8:
		return word(key[len(key)-8:]) >> (8 * (8 - n) & 63), 0
	default:
		return short(rest), 0
	}
}

// short returns a string of at most seven bytes as a word.
func short(s string) uint64 {
	switch n := len(s); {
	case n >= 4:
		return uint64(half(s)) | uint64(half(s[n-4:]))>>(8*(8-n)&63)<<32
	case n == 0:
		return 0
	default: // with one or two bytes, some of these are the same byte
		return uint64(s[0]) | uint64(s[n/2])<<(8*(n/2)&63) | uint64(s[n-1])<<(8*(n-1)&63)
	}
}

func half(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// scramble1 of zero is zero, so padding does not change a hash.
func scramble1(k uint64) uint64 { return bits.RotateLeft64(k*c1, 31) * c2 }

func scramble2(k uint64) uint64 { return bits.RotateLeft64(k*c2, 33) * c1 }

func block(h1, h2, k1, k2 uint64) (uint64, uint64) {
	h1 = (bits.RotateLeft64(h1^scramble1(k1), 27)+h2)*5 + 0x52dce729
	h2 = (bits.RotateLeft64(h2^scramble2(k2), 31)+h1)*5 + 0x38495ab5
	return h1, h2
}

func finish(h1, h2 uint64) (uint64, uint64) {
	h1 += h2
	h2 += h1
	h1, h2 = mix(h1), mix(h2)
	h1 += h2
	return h1, h2 + h1
}

func mix(k uint64) uint64 {
	k = (k ^ k>>33) * 0xff51afd7ed558ccd
	k = (k ^ k>>33) * 0xc4ceb9fe1a85ec53
	return k ^ k>>33
}

// newID returns a random identifier.
func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
