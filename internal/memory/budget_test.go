//go:build !race

package memory

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The budget counts real memory, for values of any kind.
func TestBudget(t *testing.T) {
	t.Run("ints", func(t *testing.T) {
		fillBudget(t, 120_000, func(i int) int64 { return int64(i) })
	})
	t.Run("strings of 1 KiB", func(t *testing.T) {
		fillBudget(t, 60_000, func(i int) string { return strings.Repeat(string(rune('a'+i%26)), 1024) })
	})
	t.Run("strings of 64 KiB", func(t *testing.T) {
		fillBudget(t, 2_000, func(i int) string { return strings.Repeat(string(rune('a'+i%26)), 64<<10) })
	})
	t.Run("structs", func(t *testing.T) {
		fillBudget(t, 35_000, func(i int) row {
			r := row{ID: int64(i), Name: fmt.Sprint("row ", i), At: time.Now(), Counts: map[string]int{},
				Parent: &row{Name: fmt.Sprint("parent ", i)}}
			for j := range 5 {
				r.Tags = append(r.Tags, fmt.Sprint("tag ", i, j))
				r.Counts[fmt.Sprint("count ", i, j)] = j
			}
			return r
		})
	})
}

// The smallest budget also bounds the heap, except for what an empty tier takes.
func TestSmallestBudget(t *testing.T) {
	const budget, n = 64 << 10, 5000
	tier := newTier(t, budget)
	for i := range uint64(256) { // a shard of ristretto keeps its first table
		tier.cache.Set(i, &Header{}, 1)
		tier.cache.Del(i)
	}
	tier.Wait()
	empty := heap()
	for i := range n {
		put(tier, hashOf(i), &Item[int, string]{Key: i, Value: strings.Repeat("x", 192)}, 8+16+192, time.Hour,
			time.Hour)
		if i%100 == 0 {
			tier.Wait()
		}
	}
	tier.Wait()
	grown := heap() - empty
	kept := 0
	for i := range n {
		if _, _, ok := Get[int, string](tier, hashOf(i), &noEras, i); ok {
			kept++
		}
	}
	t.Logf("%d items, %d bytes", kept, grown)
	if grown > budget*5/4 || kept < 120 {
		t.Errorf("the tier takes %d bytes of %d, for %d items", grown, budget, kept)
	}
}

func fillBudget[V any](t *testing.T, n int, value func(int) V) {
	const budget = 16 << 20
	before := heap()
	tier := newTier(t, budget)
	for i := range n {
		v := value(i)
		put(tier, uint64(i)*0x9e3779b97f4a7c15, &Item[int, V]{Key: i, Value: v},
			weighTo(i, tier.Largest())+weighTo(v, tier.Largest()), time.Hour, time.Hour)
		if i%1000 == 0 {
			tier.Wait() // or most would be dropped before they are looked at
		}
	}
	tier.Wait()
	grown := heap() - before
	kept := 0
	for i := range n {
		if _, _, ok := Get[int, V](tier, uint64(i)*0x9e3779b97f4a7c15, &noEras, i); ok {
			kept++
		}
	}
	ratio := float64(grown) / budget
	t.Logf("%d of %d items, %d bytes, %d an item: %.2f of the budget", kept, n, grown, grown/int64(max(kept, 1)), ratio)
	if kept == n {
		t.Error("all items fit: that shows nothing")
	}
	if ratio < 0.4 || ratio > 1.25 {
		t.Errorf("the tier takes %.2f of its budget", ratio)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers and pools have kept
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A budget of any size makes a tier. With the race detector this takes 20 s of CPU time: its
// shadow of the tables is larger than they are.
func TestBudgetOfAnySize(t *testing.T) {
	newTier(t, min(1<<40, math.MaxInt))
}
