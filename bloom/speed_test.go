package bloom

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/bits-and-blooms/bloom/v3"

	"github.com/cacheaside/cacheaside/internal/test/testenv"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// lookups are the filters whose lookups are compared, of a million keys at 1 %, and keys of about
// 15 bytes.
var sink bool // keeps the compiler from removing lookups

type lookups struct {
	raw           *bloom.BloomFilter
	local         *Local
	replica       *Replica // that has its copy, trusts it for ever, and sends no requests
	there, absent []string
}

func newLookups(t testing.TB, n int) *lookups {
	l := &lookups{raw: bloom.NewWithEstimates(uint(n), 0.01), local: newLocal(t, uint64(n), 0.01),
		replica: still(t, uint64(n))}
	complete(t, l.local)
	for i := range n {
		key := "user:" + digits(i)
		l.raw.AddString(key)
		must(t, l.local.Add(t.Context(), key))
		h := bitmap.HashOf(key)
		l.replica.add(&h)
		if i < 1<<16 {
			l.there, l.absent = append(l.there, key), append(l.absent, "none:"+digits(i))
		}
	}
	return l
}

// still is a Replica that has a copy, trusts it for ever, and sends no requests.
func still(t testing.TB, capacity uint64) *Replica {
	_, client := testenv.Mini(t)
	f := newFilter(t, client, capacity)
	r := &Replica{Redis: f, start: time.Now()}
	s, err := bitmap.ShapeFor(capacity, 0.01)
	must(t, err)
	r.serving.Store(newBitmapCopy(newGeneration(s, capacity, 0.01)))
	r.trustedUntil.Store(math.MaxInt64)
	return r
}

// digits are ten, as if at random.
func digits(i int) string { return fmt.Sprintf("%010d", uint64(i)*0x9e3779b97f4a7c15>>31) }

// ways are the lookups, each of all keys.
func (l *lookups) ways(t testing.TB) map[string]func(keys []string) {
	ctx, bits := t.Context(), l.local.current.Load().active.Bitmap
	return map[string]func(keys []string){
		"raw": func(keys []string) {
			for _, key := range keys {
				sink = l.raw.TestString(key)
			}
		},
		"bitmap": func(keys []string) {
			for _, key := range keys {
				h := bitmap.HashOf(key)
				sink = bits.Has(&h)
			}
		},
		"local": func(keys []string) {
			for _, key := range keys {
				sink, _ = l.local.MightContain(ctx, key)
			}
		},
		"replica": func(keys []string) {
			for _, key := range keys {
				sink, _ = l.replica.MightContain(ctx, key)
			}
		},
	}
}

func BenchmarkLookup(b *testing.B) {
	l := newLookups(b, 1_000_000)
	for what, keys := range map[string][]string{"hit": l.there, "miss": l.absent} {
		for way, look := range l.ways(b) {
			b.Run(what+"/"+way, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					look(keys)
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(len(keys)), "ns/key")
			})
		}
	}
}

// TestLookupAllocatesNothing: neither hits nor misses.
func TestLookupAllocatesNothing(t *testing.T) {
	l := newLookups(t, 1000)
	for way, look := range l.ways(t) {
		if n := testing.AllocsPerRun(10, func() { look(l.there); look(l.absent) }); n != 0 {
			t.Errorf("%s: %v allocations", way, n)
		}
	}
}
