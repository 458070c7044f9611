package filters_test

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// segmentsOf are the names of a filter's segments in Redis.
func segmentsOf(t *testing.T, rdb *redis.Client, name string) []string {
	keys, err := rdb.Keys(t.Context(), "cacheaside::bloom:{"+name+"/*").Result()
	must(t, err)
	slices.Sort(keys)
	if len(keys) < 2 {
		t.Fatal(keys)
	}
	return keys
}

// TestSegmentThatIsAnother: a segment that was copied over another, or cut short or made longer,
// hides nothing, and is counted as lost.
func TestSegmentThatIsAnother(t *testing.T) {
	const n, capacity = 6000, 60_000 // two segments
	rdb := testenv.SharedRedis(t).Client(t)
	keys := keysOf("user:", n)
	get := func(key string) string {
		raw, err := rdb.Get(t.Context(), key).Result()
		must(t, err)
		return raw
	}
	set := func(key, raw string) { must(t, rdb.Set(t.Context(), key, raw, 0).Err()) }
	for what, harm := range map[string]func(s []string){
		"copied":   func(s []string) { must(t, rdb.Copy(t.Context(), s[0], s[1], 0, true).Err()) },
		"cut":      func(s []string) { set(s[1], get(s[1])[:16<<10]) },
		"cut more": func(s []string) { set(s[1], get(s[1])[:24]) },
		"one less": func(s []string) { raw := get(s[1]); set(s[1], raw[:len(raw)-1]) },
		"longer":   func(s []string) { set(s[1], get(s[1])+"\x00") },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFilter(t, rdb, "segments", capacity)
			_, err := f.Rebuild(t.Context(), bloom.Keys(keys...), atOnce)
			must(t, err)
			s := segmentsOf(t, rdb, "segments")
			harm(s)
			if got := hidden(t, f, keys); got != 0 {
				t.Errorf("%d of %d keys are hidden", got, n)
			}
			r, err := bloom.NewReplica(f)
			must(t, err)
			testenv.Eventually(t, "the copy", func() bool { return f.Stats().Copied })
			if got := hidden(t, r, keys); got != 0 {
				t.Errorf("%d of %d keys are hidden by a replica", got, n)
			}
			if s, err := f.State(t.Context()); s.LostSegments != 1 || err != nil {
				t.Errorf("%d segments are lost, %v", s.LostSegments, err)
			}
			if got := hidden(t, f, keysOf("absent:", 1000)); got < 500 {
				t.Errorf("%d of 1000 absent keys are refused: all is lost", got)
			}
			must(t, r.Close())
			must(t, f.Close())
		})
	}
}

// TestEmptySegmentThatIsAnother: also for a segment without keys.
func TestEmptySegmentThatIsAnother(t *testing.T) {
	rdb := testenv.SharedRedis(t).Client(t)
	f := newFilter(t, rdb, "empty", 100_000)
	_, err := f.Rebuild(t.Context(), bloom.Keys(), &bloom.RebuildOptions{Settle: -1, AllowFewer: true})
	must(t, err)
	s := segmentsOf(t, rdb, "empty")
	keys := keysOf("user:", 100)
	must(t, rdb.Copy(t.Context(), s[0], "aside", 0, true).Err())
	must(t, f.AddMany(t.Context(), keys))
	for _, segment := range s[1:] {
		must(t, rdb.Copy(t.Context(), "aside", segment, 0, true).Err())
	}
	if got := hidden(t, f, keys); got != 0 {
		t.Errorf("%d of %d keys are hidden", got, len(keys))
	}
}
