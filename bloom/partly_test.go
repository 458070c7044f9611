package bloom

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// TestPartFailsOfAnOldGeneration: a filter that goes by an old descriptor, and can ask only a part
// of its generation, takes no "no" of the other parts.
func TestPartFailsOfAnOldGeneration(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, stale := newFilter(t, rdb, 100_000), newFilter(t, rdb, 100_000) // four segments
		g := built(t, f, "a")
		if mightContain(t, stale, "b") {
			t.Fatal("wrong")
		}
		time.Sleep(2 * minRefetch)
		next, err := f.begin(t.Context(), f.capacity)
		must(t, err)
		must(t, f.prepare(t.Context(), next))
		must(t, f.activate(t.Context(), next)) // the filter before is not removed, as when a server cannot be reached
		must(t, f.Add(t.Context(), "b"))
		h := bitmap.HashOf("b")
		other := ""
		for i := 0; other == ""; i++ {
			key := fmt.Sprint("other", i)
			if o := bitmap.HashOf(key); g.shape().Segment(&o) != g.shape().Segment(&h) {
				other = key
			}
		}
		o := bitmap.HashOf(other)
		broken := segmentKey(f.options.Prefix, f.name, g.ID, g.shape().Segment(&o))
		must(t, rdb.Del(t.Context(), broken).Err())
		must(t, rdb.LPush(t.Context(), broken, "what a script cannot read").Err())
		if maybe, err := stale.MightContainMany(t.Context(), []string{"b", other}); !maybe[0] {
			t.Fatalf("b is missed, error %v", err)
		}
	})
}

// TestPartFails: of the keys of one lookup, those that could be asked for are counted as what they
// are.
func TestPartFails(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000)
		g := built(t, f, numbered(100)...)
		broken := segmentKey(f.options.Prefix, f.name, g.ID, 0)
		must(t, rdb.Del(t.Context(), broken).Err())
		must(t, rdb.LPush(t.Context(), broken, "what a script cannot read").Err())
		failed := int64(0)
		for _, key := range numbered(100) {
			if h := bitmap.HashOf(key); g.shape().Segment(&h) == 0 {
				failed++
			}
		}
		maybe, err := f.MightContainMany(t.Context(), numbered(100))
		if err == nil || slices.Contains(maybe, false) {
			t.Error(maybe, err)
		}
		if s := f.Stats(); failed == 0 || s.Failed != failed || s.Present != 100-failed || s.Lost != 0 {
			t.Errorf("%d have failed: %+v", failed, s)
		}
	})
}
