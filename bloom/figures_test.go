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

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
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
		theirs := make([]*bloom.BloomFilter, g.Segments)
		for i := range theirs {
			theirs[i] = bloom.New(uint(g.Bits), uint(g.K))
		}
		for _, key := range keysOf("key", int(n)) {
			must(t, l.Add(t.Context(), key))
			h := bitmap.HashOf(key)
			theirs[g.Segment(&h)].AddString(key)
		}
		for s, f := range theirs {
			for i, w := range f.BitSet().Words() {
				if own := g.SegmentWords(uint64(s))[i]; own != w {
					t.Fatalf("%d keys, segment %d of %d, word %d: %x instead of %x", n, s, g.Segments, i, own, w)
				}
			}
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
			s, err := bitmap.ShapeFor(c.capacity, c.rate)
			must(t, err)
			own, single := bitmap.New(s), bitmap.New(bitmap.Shape{Segments: 1, Bits: s.Total(), K: 1})
			parallel(int(c.capacity), func(keys func() (string, bool)) (found [2]int64) {
				for key, ok := keys(); ok; key, ok = keys() {
					h := bitmap.HashOf("there" + strconv.Itoa(i) + key)
					own.Add(&h)
					single.Add(&h)
				}
				return
			})
			found := parallel(probes, func(keys func() (string, bool)) (found [2]int64) {
				for key, ok := keys(); ok; key, ok = keys() {
					h := bitmap.HashOf("absent" + strconv.Itoa(i) + key)
					if own.Has(&h) {
						found[0]++
					}
					if single.Has(&h) {
						found[1]++
					}
				}
				return
			})
			rate := float64(found[0]) / float64(probes)
			sigma := math.Sqrt(c.rate / float64(probes)) // of the measured rate, if it equals the requested one
			t.Logf("%.5f %% of %d, standard error %.5f %%: %+.2f %%; %d segments of %d bits (%.2f for each key), k = "+
				"%d; one hash in as many bits: %.2f %%, in 2^32 (512 MB): %.4f %%", 100*rate, probes, 100*sigma,
				100*(rate/c.rate-1), s.Segments, s.Bits, float64(s.Total())/float64(c.capacity), s.K, 100*float64(
					found[1])/float64(probes), -100*math.Expm1(-float64(c.capacity)/(1<<32)))
			if off := math.Abs(rate - c.rate); off > 0.05*c.rate+4*sigma || accept && off > 0.05*c.rate {
				t.Errorf("%v instead of %v", rate, c.rate)
			}
			if want := -math.Expm1(-float64(c.capacity) / float64(s.Total())); math.Abs(
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
