// Package bitmap computes with the bits of a filter, in memory and without I/O: how many bits a
// filter needs (Shape), which of them a key sets (Hash), and a filter of this process (Bitmap).
// Package bloom calls it for all filters: a Local and the copy of a Replica are Bitmaps, and the
// scripts of a Redis filter get the offsets of a Shape.
package bitmap

import (
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/bits-and-blooms/bloom/v3"
)

// Shape describes the layout of a filter's bits: segments of equal size, and k bits for each key,
// all in one segment. So a key is looked up in one place, regardless of the size of the filter, and
// a lost segment affects only its own keys.
//
// A filter of one segment has exactly the bits of a filter of bits-and-blooms/bloom. A filter of
// several segments consists of several of these.
type Shape struct {
	Segments uint64
	Bits     uint64 // of a segment; a multiple of 64
	K        uint64
}

// The limits of a Shape.
const (
	// typicalBits is the size of the segments of all but the largest filters, 32 KiB each. With
	// smaller segments, the number of keys in each would vary more, which increases the rate of
	// false positives (by less than 0.4 % at 0.01 %). With larger segments, Redis would allocate a
	// whole segment for only a few keys.
	typicalBits = 1 << 18
	MaxSegments = 1 << 16
	MaxBits     = 1 << 26 // of a segment, so that no command blocks a server for long
	MaxK        = 40

	MaxCapacity = MaxSegments * MaxBits / 64 // keys

	minRate = 1e-9
	maxRate = 0.5
)

// ShapeFor returns the shape of a filter that has this rate when it contains capacity keys: rate =
// (1 - exp(-kn/m))^k. bits-and-blooms takes m for the optimal k, and rounds k up, which makes the
// rate up to 8 % higher than requested at rates below 30 %. ShapeFor computes m for a whole number
// K instead. Of the two whole numbers next to the optimum, it takes the one that needs fewer bits.
func ShapeFor(capacity uint64, rate float64) (Shape, error) {
	switch {
	case !(rate >= minRate && rate <= maxRate): // including NaN
		return Shape{}, fmt.Errorf("rate %v: from %v to %v", rate, minRate, maxRate)
	case capacity == 0 || capacity > MaxCapacity:
		return Shape{}, fmt.Errorf("capacity %d: from 1 to %d", capacity, uint64(MaxCapacity))
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
	segments := min(max(1, (m+typicalBits-1)/typicalBits), MaxSegments)
	s := Shape{Segments: segments, Bits: ((m+segments-1)/segments + 63) &^ 63, K: uint64(k)}
	if err := s.Check(); err != nil {
		return Shape{}, fmt.Errorf("capacity %d at a rate of %v: %w", capacity, rate, err)
	}
	return s, nil
}

// bitsFor returns the number of bits needed if each key sets k of them.
func bitsFor(capacity uint64, rate float64, k uint) uint64 {
	set := math.Pow(rate, 1/float64(k)) // share of set bits
	return uint64(math.Ceil(-float64(k) * float64(capacity) / math.Log1p(-set)))
}

// Check returns an error if the Shape is not one that this package makes. It may have been read
// from Redis.
func (s Shape) Check() error {
	if s.Segments == 0 || s.Segments > MaxSegments || s.Bits == 0 || s.Bits > MaxBits || s.Bits%64 != 0 || s.K == 0 ||
		s.K > MaxK {
		return fmt.Errorf("%d segments of %d bits, %d bits per key: at most %d segments of %d bits, %d bits per key",
			s.Segments, s.Bits, s.K, MaxSegments, MaxBits, MaxK)
	}
	return nil
}

// Total returns the number of bits of all segments.
func (s Shape) Total() uint64 { return s.Segments * s.Bits }

// Segment returns the index of the segment that h belongs to.
func (s Shape) Segment(h *Hash) uint64 {
	index, _ := bits.Mul64(h[0], s.Segments) // h[0] is location 0
	return index
}

// BitOffset returns the offset of bit i of a key in its segment.
func (s Shape) BitOffset(h *Hash, i uint64) uint64 { return h.location(i) % s.Bits }

// Bitmap contains the bits of a filter in this process. Lookups and additions may run
// concurrently. A bit is never cleared.
type Bitmap struct {
	Shape
	Words   []uint64 // segment after segment; bit i of a segment is bit i%64 of its word i/64
	inverse uint64   // 2^64 divided by Shape.Bits, for reduce
}

// New returns an empty Bitmap.
func New(s Shape) *Bitmap {
	return bitmapOf(s, make([]uint64, s.Total()/64))
}

func bitmapOf(s Shape, words []uint64) *Bitmap {
	return &Bitmap{Shape: s, Words: words, inverse: math.MaxUint64 / s.Bits}
}

// reduce returns x modulo modulus, by Barrett's reduction, whose quotient is at most one too small.
// inverse is 2^64 divided by modulus. A division would take longer than the rest of a lookup.
func reduce(x, modulus, inverse uint64) uint64 {
	quotient, _ := bits.Mul64(x, inverse)
	less := x - quotient*modulus - modulus
	// Add modulus if the result is negative. A branch would be mispredicted half of the time.
	return less + modulus&uint64(int64(less)>>63)
}

// SegmentWords returns the words of segment s.
func (b *Bitmap) SegmentWords(s uint64) []uint64 {
	n := b.Bits / 64
	return b.Words[s*n : (s+1)*n]
}

// bitAt returns a word whose lowest bit is the bit of location x of a segment. The other bits are
// undefined.
func bitAt(words []uint64, x, bits, inverse uint64) uint64 {
	offset := reduce(x, bits, inverse)
	return atomic.LoadUint64(&words[offset/64]) >> (offset % 64)
}

// Has reports whether all bits of a key are set. It reads four bits before each branch, because a
// mispredicted branch costs more than reading a bit. The first four bits rule out all but one in
// sixteen of the missing keys.
func (b *Bitmap) Has(h *Hash) bool {
	// Local copies, which the compiler does not reload after each atomic load.
	words, k, n, inv := b.SegmentWords(b.Segment(h)), b.K, b.Bits, b.inverse
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

// Add sets the bits of a key.
func (b *Bitmap) Add(h *Hash) {
	words := b.SegmentWords(b.Segment(h))
	for i := range b.K {
		offset := reduce(h.location(i), b.Bits, b.inverse)
		if bit := uint64(1) << (offset % 64); atomic.LoadUint64(&words[offset/64])&bit == 0 {
			atomic.OrUint64(&words[offset/64], bit)
		}
	}
}

// Count returns the number of bits that are set.
func (b *Bitmap) Count() (n uint64) {
	for i := range b.Words {
		n += uint64(bits.OnesCount64(atomic.LoadUint64(&b.Words[i])))
	}
	return n
}

// Estimate returns the estimated number of keys that have set this many bits (Swamidass and
// Baldi, 2007).
func (s Shape) Estimate(set uint64) uint64 {
	m := float64(s.Total())
	fill := float64(set) / m
	if fill >= 1 {
		return math.MaxUint64
	}
	return uint64(-m/float64(s.K)*math.Log1p(-fill) + 0.5)
}

// Bytes returns the size of the bits in bytes.
func (s Shape) Bytes() int64 { return int64(s.Total() / 8) }

// Hash contains everything that a filter needs of a key: the four base hashes of
// bits-and-blooms/bloom. They are MurmurHash3 x64 128 (Appleby, public domain) of the key, and of
// the key followed by a byte 1. They are the same in every process and version.
type Hash [4]uint64

// location returns one of the values of bloom.Locations of bits-and-blooms. It follows Kirsch and
// Mitzenmacher, "Less Hashing, Same Performance", with two pairs of hashes.
func (h *Hash) location(i uint64) uint64 { return h[i&1] + i*h[2+(i+i&1)&3>>1] }

const (
	c1 = 0x87c37b91114253d5
	c2 = 0x4cf5ad432745937f
)

// HashOf returns the hash of key. It allocates nothing, and avoids branches, because it takes
// most of the time of a lookup.
func HashOf(key string) (h Hash) {
	var h1, h2 uint64
	n := uint64(len(key))
	rest := key
	for ; len(rest) >= 16; rest = rest[16:] {
		h1, h2 = block(h1, h2, Word(rest), Word(rest[8:]))
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

// HashesOf returns the hash of each of keys.
func HashesOf(keys []string) []Hash {
	hashes := make([]Hash, len(keys))
	for i, key := range keys {
		hashes[i] = HashOf(key)
	}
	return hashes
}

// Word returns the first eight bytes of s as a number.
func Word(s string) uint64 {
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
		return Word(rest), Word(rest[n-8:]) >> (8 * (16 - n) & 63)
	case n == 8:
		return Word(rest), 0
	case n == 0:
		return 0, 0
	case len(key) >= 8:
		return Word(key[len(key)-8:]) >> (8 * (8 - n) & 63), 0
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
