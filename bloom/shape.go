package bloom

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/bits-and-blooms/bloom/v3"
)

// shape is what a filter's bits mean: it has segments of so many bits each, and a key has k of
// them, all in one segment. So a key is looked up in one place however large the filter is, and
// what is lost with a segment concerns its own keys only.
//
// A filter of one segment is, bit for bit, a filter of bits-and-blooms/bloom; one of several is
// several of them.
type shape struct {
	segments uint64
	bits     uint64 // of a segment; a multiple of 64
	k        uint64
}

const (
	// typicalBits is the size of the segments of all but the largest filters: 32 KiB each. Smaller
	// ones would make the number of keys in each vary more, which costs false positives (below 0.4
	// % more at 0.01 %); larger ones would be allocated by Redis for a few keys.
	typicalBits = 1 << 18
	maxSegments = 1 << 16
	maxBits     = 1 << 26 // of a segment, so that no command keeps a server for long
	maxK        = 40

	minRate = 1e-9
	maxRate = 0.5
)

// shapeFor sizes a filter so that it has this rate when it holds so many keys: (1 - exp(-kn/m))^k.
// bits-and-blooms takes the bits for the best k, and rounds that up, by which the rate is up to 8 %
// above what was asked for, at rates below 30 %; here the bits are those that the whole number k
// needs, and k that number, of the two around the best, which needs fewer.
func shapeFor(capacity uint64, rate float64) (shape, error) {
	switch {
	case !(rate >= minRate && rate <= maxRate): // also NaN
		return shape{}, fmt.Errorf("rate %v: from %v to %v", rate, minRate, maxRate)
	case capacity == 0 || capacity > maxSegments*maxBits/64:
		return shape{}, fmt.Errorf("capacity %d: from 1 to %d", capacity, uint64(maxSegments*maxBits/64))
	}
	n := capacity
	if bits.UintSize == 32 {
		n = min(n, 1<<24) // the bits for more keys overflow a uint, and k does not depend on n
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

// bitsFor is how many bits it takes if each key has k of them.
func bitsFor(capacity uint64, rate float64, k uint) uint64 {
	set := math.Pow(rate, 1/float64(k)) // of all bits
	return uint64(math.Ceil(-float64(k) * float64(capacity) / math.Log1p(-set)))
}

func (s shape) check() error {
	if s.segments == 0 || s.segments > maxSegments || s.bits == 0 || s.bits > maxBits || s.bits%64 != 0 || s.k == 0 || s.k > maxK {
		return fmt.Errorf("%d segments of %d bits, %d for each key: at most %d of %d, %d", s.segments, s.bits, s.k, maxSegments, maxBits, maxK)
	}
	return nil
}

// total is the number of bits of all segments.
func (s shape) total() uint64 { return s.segments * s.bits }

// segment is where a key belongs.
func (s shape) segment(h *hash) uint64 {
	at, _ := bits.Mul64(h[0], s.segments) // h[0] is location 0
	return at
}

// bit is the place of one of a key's bits in its segment.
func (s shape) bit(h *hash, i uint64) uint64 { return h.location(i) % s.bits }
