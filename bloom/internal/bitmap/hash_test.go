package bitmap

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
)

// TestHashIsOfBitsAndBlooms compares all locations with those of bloom.Locations, for keys of every
// length around the blocks of the hash.
func TestHashIsOfBitsAndBlooms(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := range 2000 {
		key := make([]byte, n%100)
		for i := range key {
			key[i] = byte(rnd.Uint32())
		}
		compareLocations(t, string(key))
	}
}

func FuzzHash(f *testing.F) {
	f.Add("")
	f.Add("fifteen letters")
	f.Add("thirty-two letters are two block")
	f.Fuzz(compareLocations)
}

func compareLocations(t *testing.T, key string) {
	t.Helper()
	h := HashOf(key)
	for i, want := range bloom.Locations([]byte(key), MaxK) {
		if got := h.location(uint64(i)); got != want {
			t.Fatalf("key %q, location %d: %x instead of %x", key, i, got, want)
		}
	}
}

var sink bool

func BenchmarkHas(b *testing.B) {
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = "user:" + string(rune('a'+i%26)) + randomDigits(i)
	}
	raw := bloom.NewWithEstimates(1_000_000, 0.01)
	s, _ := ShapeFor(1_000_000, 0.01)
	ours := New(s)
	for i := range 1_000_000 {
		k := randomDigits(i + 1e9)
		raw.AddString(k)
		h := HashOf(k)
		ours.Add(&h)
	}
	b.Run("raw", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			sink = raw.TestString(keys[i&0xffff])
		}
	})
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			h := HashOf(keys[i&0xffff])
			sink = ours.Has(&h)
		}
	})
	b.Run("hash", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			h := HashOf(keys[i&0xffff])
			sink = h[0] == h[3]
		}
	})
	b.Run("clock", func(b *testing.B) {
		start := time.Now()
		for i := 0; b.Loop(); i++ {
			sink = time.Since(start) == 7
		}
	})
}

func randomDigits(i int) string {
	b := make([]byte, 0, 12)
	for x := uint64(i) * 0x9e3779b97f4a7c15 >> 8; x > 0; x /= 10 {
		b = append(b, byte('0'+x%10))
	}
	return string(b[:min(len(b), 12)])
}

// TestReduceIsTheRemainder checks reduce for all sizes of a segment, and where a quotient is about
// to change.
func TestReduceIsTheRemainder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for n := range 2000 {
		bits := uint64(64 * (n + 1))
		if n >= 1000 {
			bits = 64 * (1 + rnd.Uint64N(MaxBits/64))
		}
		inverse := bitmapOf(Shape{Bits: bits}, nil).inverse
		multiple := rnd.Uint64() / bits * bits
		for _, x := range []uint64{0, 1, bits - 1, bits, multiple - 1, multiple, multiple + 1, math.MaxUint64, -bits,
			rnd.Uint64()} {
			if got := reduce(x, bits, inverse); got != x%bits {
				t.Fatalf("%d modulo %d: %d", x, bits, got)
			}
		}
	}
}
