package bloom

import (
	"context"
	"errors"
	"iter"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// eachRebuilt runs a test on each kind of filter.
func eachRebuilt(t *testing.T, test func(t *testing.T, f rebuildable)) {
	oneServer(t, func(t *testing.T, rdb redis.UniversalClient) { test(t, newFilter(t, rdb, 10_000)) })
	t.Run("local", func(t *testing.T) { test(t, newLocal(t, 10_000, 0.01)) })
}

// TestFewerKeys: a filter that has lost too many does not take the place of the present one.
func TestFewerKeys(t *testing.T) {
	eachRebuilt(t, func(t *testing.T, f rebuildable) {
		keys := numbered(4000)
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), none)))
		for _, n := range []int{0, 1, 2000, 3500} {
			err := errorOf(f.Rebuild(t.Context(), Keys(keys[:n]...), none))
			if hidden := hiddenOf(t, f, keys); !errors.Is(err, ErrFewer) || hidden > 0 {
				t.Fatalf("%d of 4000 keys: %d are hidden: %v", n, hidden, err)
			}
			if mightContain(t, f, "nobody") {
				t.Error("the present one does not serve")
			}
			if r, ok := f.(*Redis); ok {
				mustBeWhole(t, r)
			}
		}
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys[:3700]...), none)))
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys[:10]...), fewer)))
		if hidden := hiddenOf(t, f, keys); hidden < 3900 {
			t.Errorf("%d keys are hidden where that is allowed", hidden)
		}
	})
}

func errorOf(_ Report, err error) error { return err }

// TestReportedDeletesAreNotMissingKeys: rows that were reported by Deleted do not count.
func TestReportedDeletesAreNotMissingKeys(t *testing.T) {
	eachRebuilt(t, func(t *testing.T, f rebuildable) {
		keys := numbered(4000)
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), none)))
		deleted := f.(interface {
			Deleted(ctx context.Context, rows int) error
		})
		must(t, deleted.Deleted(t.Context(), 1500))
		if err := errorOf(f.Rebuild(t.Context(), Keys(keys[:2000]...), none)); !errors.Is(err, ErrFewer) {
			t.Fatal(err)
		}
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys[:2500]...), none)))
		must(t, deleted.Deleted(t.Context(), 2500))
		must(t, errorOf(f.Rebuild(t.Context(), Keys(), none)))
		if hidden := hiddenOf(t, f, keys); hidden < 3900 {
			t.Errorf("%d keys are hidden when all rows are deleted", hidden)
		}
	})
}

// TestFirstOfNoKeys: what was never built, or is lost, is not built of nothing.
func TestFirstOfNoKeys(t *testing.T) {
	eachRebuilt(t, func(t *testing.T, f rebuildable) {
		for range 2 {
			if err := errorOf(f.Rebuild(t.Context(), Keys(), none)); !errors.Is(err, ErrFewer) ||
				!mightContain(t, f, "nobody") {
				t.Fatal(err)
			}
			must(t, errorOf(f.Rebuild(t.Context(), Keys(), fewer)))
			if mightContain(t, f, "nobody") {
				t.Fatal("it was allowed")
			}
			must(t, errorOf(f.Rebuild(t.Context(), Keys(), none))) // it has as many as before
			r, ok := f.(*Redis)
			if !ok {
				return
			}
			flush(t, r.rdb)
			r.cached.Store(nil)
		}
	})
}

// TestComparedByBits: a rebuilt filter is compared with the bits that Redis has of the present one.
func TestComparedByBits(t *testing.T) {
	oneServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000) // four segments
		keys := numbered(4000)
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), none)))
		if err := errorOf(f.Rebuild(t.Context(), Keys(keys[:2000]...), none)); !errors.Is(err, ErrFewer) {
			t.Fatal(err)
		}

		// Content in the place of a segment is compared with nothing; a lost segment is not.
		must(t, rdb.Del(t.Context(), segmentKey("cacheaside", "users", f.cached.Load().Active.ID, 1)).Err())
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys[:3000]...), none)))
		segment := segmentKey("cacheaside", "users", f.cached.Load().Active.ID, 1)
		must(t, rdb.Del(t.Context(), segment).Err())
		must(t, rdb.SAdd(t.Context(), segment, "a set").Err())
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys[:3000]...), none)))
		mustHave(t, f, keys[:3000], "rebuilt")
		mustBeWhole(t, f)
	})
}

// TestLostIsNotFewer: where Redis loses a part of what is being built, that is begun anew, not
// refused.
func TestLostIsNotFewer(t *testing.T) {
	oneServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000) // four segments
		keys := numbered(4000)
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), none)))
		reads := 0
		source := func(ctx context.Context, after string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				Keys(keys...)(ctx, after)(yield)
				if reads++; reads == 1 { // all have been added, in batches
					loseSegment(t, f)
				}
			}
		}
		must(t, errorOf(f.Rebuild(t.Context(), source, &RebuildOptions{Settle: -1, batchSize: 1000})))
		mustHave(t, f, keys, "rebuilt")
		mustBeWhole(t, f)
	})
}

// TestFullFilters: a filter with all bits set cannot estimate its number of keys, and can still be
// rebuilt.
func TestFullFilters(t *testing.T) {
	eachRebuilt(t, func(t *testing.T, f rebuildable) {
		keys := numbered(sized(20_000, 2000))
		small := &RebuildOptions{Settle: -1, Capacity: 50}
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), small)))
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), small)))
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), none)))
		must(t, errorOf(f.Rebuild(t.Context(), Keys(keys...), small)))
	})
}

// TestEstimated: about how many keys there are, in filters of all sizes.
func TestEstimated(t *testing.T) {
	for capacity, n := range map[uint64]int{10: 10, 1000: 5, 2000: 2000, 50_000: 50_000, 10_000: 40_000} {
		keys := numbered(n)
		s, err := bitmap.ShapeFor(capacity, 0.01)
		must(t, err)
		m := bitmap.New(s)
		for _, key := range keys {
			h := bitmap.HashOf(key)
			m.Add(&h)
		}
		about := s.Estimate(m.Count())
		if off := math.Abs(float64(about) - float64(n)); off > estimateSlack && off > 0.03*float64(n) {
			t.Errorf("%d keys in a filter for %d: about %d", n, capacity, about)
		}
	}
}

// TestCapacityAfterALoss: the keys of lost segments do not count, but the next filter is for them.
func TestCapacityAfterALoss(t *testing.T) {
	for _, c := range []struct {
		constructor uint64
		s           State
		want        uint64
	}{
		{1000, State{Capacity: 4000, Keys: 3000}, 4000},
		{1000, State{Capacity: 4000, Keys: 1500}, 2000},
		{1000, State{Capacity: 4000, Keys: 1500, LostSegments: 1}, 4000},
		{1000, State{Capacity: 4000, LostSegments: 1}, 4000},
		{1000, State{Capacity: 4000, Keys: 4000, LostSegments: 1}, 8000},
		{5000, State{Capacity: 4000, Keys: 1500, LostSegments: 1}, 5000},
	} {
		if got := grownCapacity(c.constructor, 0.01, c.s); got != c.want {
			t.Errorf("%+v: %d, not %d", c.s, got, c.want)
		}
	}
	if got := grownCapacity(1000, 0.01,
		State{Capacity: math.MaxUint64, LostSegments: 1}); got > bitmap.MaxCapacity {
		t.Errorf("a capacity that no filter has: %d", got)
	}
}

// TestMaintainRejects: Maintain reports a rejected filter, and waits longer than after another
// failure.
func TestMaintainRejects(t *testing.T) {
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	must(t, errorOf(f.Rebuild(t.Context(), Keys(numbered(100)...), none)))
	told := make(chan error, 10)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- f.Maintain(ctx, Keys("a"), &MaintainOptions{Every: time.Second, Rebuild: none,
			Check: 100 * time.Millisecond, Failed: func(err error) { told <- err }})
	}()
	if err := <-told; !errors.Is(err, ErrFewer) || !strings.Contains(err.Error(), "AllowFewer") {
		t.Error(err)
	}
	if s := f.Stats(); s.Failures != 1 || s.Rejected != 1 {
		t.Errorf("%+v", s)
	}
	mustHave(t, f, numbered(100), "rejected")
	cancel()
	<-ended
}
