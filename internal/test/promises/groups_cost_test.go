//go:build accept

package promises

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestCostOfGroups measures what two groups add to a hit and to a miss, and an InvalidateGroup of
// many entries next to an Invalidate of one key. The two sides take turns, so their ratio is
// meaningful on a busy machine too.
func TestCostOfGroups(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testenv.SharedRedis(t).Addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	t.Run("memory hit", func(t *testing.T) {
		ids := idsUpTo(benchKeys)
		plain, grouped := openCost(t, rdb, "plain", patient, cacheaside.Hook{}, ids), openCost(t, rdb, "grouped",
			patient, twoGroups, ids)
		n := testenv.AtSize(10_000, 100_000)
		for _, goroutines := range []int{1, 128} {
			compareCost(t, fmt.Sprint(goroutines, " goroutines"), n, goroutines, 1.1, getting(plain, ids),
				getting(grouped, ids))
		}
		for _, l := range []*cacheaside.Loader[int64, *benchRow]{plain, grouped} {
			if s := l.Stats(); s.MemoryHits < s.Gets*999/1000 {
				t.Errorf("not all reads are hits: %+v", s)
			}
		}
	})
	t.Run("Redis hit", func(t *testing.T) {
		ids := idsUpTo(redisKeys)
		plain, grouped := openCost(t, rdb, "plain", noMemory, cacheaside.Hook{}, ids), openCost(t, rdb, "grouped",
			noMemory, twoGroups, ids)
		n := testenv.AtSize(500, 2000)
		for _, goroutines := range []int{1, 128} {
			compareCost(t, fmt.Sprint(goroutines, " goroutines"), n, goroutines, 1.15, getting(plain, ids),
				getting(grouped, ids))
		}
		for _, l := range []*cacheaside.Loader[int64, *benchRow]{plain, grouped} {
			if s := l.Stats(); s.Loads > redisKeys {
				t.Errorf("not all reads are hits: %+v", s)
			}
		}
	})
	t.Run("miss", func(t *testing.T) {
		plain, grouped := openCost(t, rdb, "plain-misses", noMemory, cacheaside.Hook{}, nil), openCost(t, rdb, "misses",
			noMemory, twoGroups, nil)
		n := testenv.AtSize(1000, 4000)
		missing := func(l *cacheaside.Loader[int64, *benchRow]) func(int) error {
			var id atomic.Int64
			return func(int) error {
				_, err := l.Get(context.Background(), id.Add(1))
				return err
			}
		}
		getPlain, getGrouped := missing(plain), missing(grouped)
		for _, goroutines := range []int{1, 16, 128, 1000} {
			compareCost(t, fmt.Sprint(goroutines, " goroutines"), n, goroutines, 1.35, getPlain, getGrouped)
		}
		for _, l := range []*cacheaside.Loader[int64, *benchRow]{plain, grouped} {
			if s := l.Stats(); s.Loads != s.Gets || s.RedisErrors > 0 {
				t.Errorf("not all reads are misses without errors: %+v", s)
			}
		}
	})
	t.Run("invalidation", func(t *testing.T) {
		ids := idsUpTo(testenv.AtSize(1000, 100_000))
		l := openCost(t, rdb, "many", patient, twoGroups, ids)
		compareCost(t, fmt.Sprintf("a group of %d entries", len(ids)), testenv.AtSize(50, 200), 1, 1.5,
			func(i int) error { return l.Invalidate(t.Context(), int64(-1-i)) },
			func(int) error { return l.InvalidateGroup(t.Context(), "shop") })
		loads := l.Stats().Loads
		part := ids[:min(len(ids), 1000)]
		if found, err := l.GetMany(t.Context(), part); err != nil || len(found) != len(part) ||
			l.Stats().Loads != loads+int64(len(part)) {
			t.Errorf("%d found, %d loads, %v", len(found), l.Stats().Loads-loads, err)
		}
	})
}

// twoGroups returns one group that follows from the key, and one that follows from the value.
var twoGroups = cacheaside.GroupsOf(func(id int64, v *benchRow) []string {
	return []string{"shop", "price " + strconv.Itoa(int(v.Price))}
})

func idsUpTo(n int) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i)
	}
	return ids
}

// openCost returns a loader whose rows are all cached.
func openCost(
	t *testing.T, rdb redis.UniversalClient, name string, o cacheaside.Options, groups cacheaside.Hook, ids []int64,
) *cacheaside.Loader[int64, *benchRow] {
	t.Helper()
	c, err := cacheaside.New(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewBatchLoader(c, name, func(_ context.Context, ids []int64) (map[int64]*benchRow, error) {
		rows := make(map[int64]*benchRow, len(ids))
		for _, id := range ids {
			v := row(id)
			rows[id] = &v
		}
		return rows, nil
	}, &cacheaside.LoaderOptions{TTL: time.Hour, MemoryTTL: time.Hour, Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	hear(t, l)
	for part := range slices.Chunk(ids, 1000) {
		if found, err := l.GetMany(t.Context(), part); len(found) != len(part) || err != nil {
			t.Fatal(len(found), err)
		}
		if readerOf(l).HasMemory() {
			partsOf(c).memory.Wait()
		}
	}
	return l
}

func getting(l *cacheaside.Loader[int64, *benchRow], ids []int64) func(int) error {
	return func(i int) error {
		_, err := l.Get(context.Background(), ids[i%len(ids)])
		return err
	}
}

// compareCost measures n calls of floor and of own on the goroutines together, in turns, and
// compares the median of the ratios with a bar.
func compareCost(t *testing.T, name string, n, goroutines int, bar float64, floor, own func(i int) error) {
	t.Helper()
	runs := testenv.AtSize(3, 61)
	ratios, floors, owns := make([]float64, runs), make([]float64, runs), make([]float64, runs)
	for run := range runs {
		sides := []func(){
			func() { floors[run] = timeCost(t, n, goroutines, floor) },
			func() { owns[run] = timeCost(t, n, goroutines, own) },
		}
		sides[run%2]()
		sides[1-run%2]()
		ratios[run] = owns[run] / floors[run]
	}
	t.Logf("%s, %s: ratio %.2f (%.2f to %.2f); %.0f ns to %.0f ns", t.Name()[len("TestCostOfGroups/"):], name,
		middle(ratios), slices.Min(ratios), slices.Max(ratios), middle(floors), middle(owns))
	if testenv.Accepting && middle(ratios) > bar {
		t.Errorf("%s: %.2f, want at most %.2f", name, middle(ratios), bar)
	}
}

// timeCost returns the nanoseconds per call.
func timeCost(t *testing.T, n, goroutines int, f func(i int) error) float64 {
	each := n / goroutines
	began := time.Now()
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				if err := f(g*each + i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return float64(time.Since(began)) / float64(each*goroutines)
}
