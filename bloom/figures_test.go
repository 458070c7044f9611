package bloom

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bits-and-blooms/bloom/v3"
)

// TestBitsAreOfBitsAndBlooms: each segment is, word for word, that library's filter of the same
// size after the same adds.
func TestBitsAreOfBitsAndBlooms(t *testing.T) {
	for _, n := range []uint64{1, 10, 1000, 20_000, 60_000} { // the last of three segments
		if underRace && n > 1000 {
			break
		}
		l := newLocal(t, n, 0.01)
		complete(t, l)
		g := l.current.Load().active
		theirs := make([]*bloom.BloomFilter, g.segments)
		for i := range theirs {
			theirs[i] = bloom.New(uint(g.bits), uint(g.k))
		}
		for _, key := range keysOf("key", int(n)) {
			must(t, l.Add(t.Context(), key))
			h := hashOf(key)
			theirs[g.segment(&h)].AddString(key)
		}
		for s, f := range theirs {
			for i, w := range f.BitSet().Words() {
				if own := g.segmentWords(uint64(s))[i]; own != w {
					t.Fatalf("%d keys, segment %d of %d, word %d: %x instead of %x", n, s, g.segments, i, own, w)
				}
			}
		}
	}
}

// TestSizing: by the formula, no rate exceeds the requested one, and there are few more bits than
// the best k would need.
func TestSizing(t *testing.T) {
	for rate := minRate; rate <= maxRate; rate *= 1.01 {
		const n = 1_000_000
		s, err := shapeFor(n, rate)
		must(t, err)
		k, m := float64(s.k), float64(s.total())
		if got := math.Pow(-math.Expm1(-k*n/m), k); got > rate*1.0001 {
			t.Errorf("rate %v: %v, k = %v", rate, got, k)
		}
		best, _ := bloom.EstimateParameters(n, rate)
		if m > 1.08*float64(best)+64*float64(s.segments) {
			t.Errorf("rate %v: %v bits instead of %d", rate, m, best)
		}
	}
}

// TestFalsePositiveRate fills filters to their capacity and asks for absent keys. For comparison it
// logs the rate of a bitmap with as many bits and one hash for each key, set at hash % bits, as
// many articles recommend with 2^32 bits.
func TestFalsePositiveRate(t *testing.T) {
	accept := os.Getenv("CACHEASIDE_ACCEPT") != ""
	probes := 500_000
	switch {
	case underRace:
		probes = 20_000
	case accept:
		probes = 100_000_000
	}
	for i, c := range []struct {
		capacity uint64
		rate     float64
		large    bool
	}{
		{1_000_000, 0.01, false}, {1_000_000, 0.001, false}, {1_000_000, 0.0001, false},
		{20_000, 0.01, false},     // one segment
		{10_000_000, 0.001, true}, // 549 segments
	} {
		if c.large && !accept {
			continue
		}
		t.Run(fmt.Sprintf("%d at %v", c.capacity, c.rate), func(t *testing.T) {
			if !accept {
				c.capacity = min(c.capacity, 100_000) // some segments
				if underRace {
					c.capacity = min(c.capacity, 50_000)
				}
			}
			s, err := shapeFor(c.capacity, c.rate)
			must(t, err)
			own, single := newBitmap(s), newBitmap(shape{segments: 1, bits: s.total(), k: 1})
			parallel(int(c.capacity), func(keys func() (string, bool)) (found [2]int64) {
				for key, ok := keys(); ok; key, ok = keys() {
					h := hashOf("there" + strconv.Itoa(i) + key)
					own.add(&h)
					single.add(&h)
				}
				return
			})
			found := parallel(probes, func(keys func() (string, bool)) (found [2]int64) {
				for key, ok := keys(); ok; key, ok = keys() {
					h := hashOf("absent" + strconv.Itoa(i) + key)
					if own.has(&h) {
						found[0]++
					}
					if single.has(&h) {
						found[1]++
					}
				}
				return
			})
			rate := float64(found[0]) / float64(probes)
			sigma := math.Sqrt(c.rate / float64(probes)) // of the measured rate, if it equals the requested one
			t.Logf("%.5f %% of %d, standard error %.5f %%: %+.2f %%; %d segments of %d bits (%.2f for each key), k = "+
				"%d; one hash in as many bits: %.2f %%, in 2^32 (512 MB): %.4f %%", 100*rate, probes, 100*sigma,
				100*(rate/c.rate-1), s.segments, s.bits, float64(s.total())/float64(c.capacity), s.k, 100*float64(
					found[1])/float64(probes), -100*math.Expm1(-float64(c.capacity)/(1<<32)))
			if off := math.Abs(rate - c.rate); off > 0.05*c.rate+4*sigma || accept && off > 0.05*c.rate {
				t.Errorf("%v instead of %v", rate, c.rate)
			}
			if want := -math.Expm1(-float64(c.capacity) / float64(s.total())); math.Abs(
				float64(found[1])/float64(probes)/want-1) > 0.05 {
				t.Errorf("one hash: %v instead of %v", float64(found[1])/float64(probes), want)
			}
		})
	}
}

// parallel has all cores go through the numbers to n, and adds up what they find.
func parallel(n int, each func(keys func() (string, bool)) [2]int64) [2]int64 {
	var found [2]atomic.Int64
	var all sync.WaitGroup
	cores := runtime.GOMAXPROCS(0)
	for c := range cores {
		all.Go(func() {
			at := c - cores
			mine := each(func() (string, bool) {
				at += cores
				return strconv.Itoa(at), at < n
			})
			for i := range found {
				found[i].Add(mine[i])
			}
		})
	}
	all.Wait()
	return [2]int64{found[0].Load(), found[1].Load()}
}
