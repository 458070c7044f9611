package bloom

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// backends runs a test of a step of the protocol on each kind of server.
func backends(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	t.Run("embedded", func(t *testing.T) {
		_, client := testenv.Mini(t)
		test(t, client)
	})
	t.Run("redis", func(t *testing.T) { test(t, testenv.SharedRedis(t).Client(t)) })
	t.Run("cluster", func(t *testing.T) { test(t, testenv.SharedCluster(t).Client(t)) })
	t.Run("serverless", func(t *testing.T) { test(t, testenv.SharedServerless(t).Client(t)) })
}

// twoServers runs a test that does not depend on the kind of server on the embedded one, which
// holds all keys of a filter, and on a cluster. With CACHEASIDE_ACCEPT, it runs on each kind.
func twoServers(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	if testenv.Accepting {
		backends(t, test)
		return
	}
	t.Run("embedded", func(t *testing.T) {
		_, client := testenv.Mini(t)
		test(t, client)
	})
	t.Run("cluster", func(t *testing.T) { test(t, testenv.SharedCluster(t).Client(t)) })
}

// oneServer runs a test of many keys on Redis, or on the embedded server if Redis is not installed.
// With CACHEASIDE_ACCEPT, the test runs on each kind.
func oneServer(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	switch {
	case testenv.Accepting:
		backends(t, test)
	case testenv.HasRedis():
		t.Run("redis", func(t *testing.T) { test(t, testenv.SharedRedis(t).Client(t)) })
	default:
		t.Run("embedded", func(t *testing.T) {
			_, client := testenv.Mini(t)
			test(t, client)
		})
	}
}

func tooHeavy(t testing.TB) bool {
	return strings.Contains(t.Name(), "/embedded") && testenv.HasRedis() && !testenv.Accepting
}

// sized returns the number of keys of a test: full with CACHEASIDE_ACCEPT, otherwise few.
func sized(full, few int) int {
	if testenv.Accepting {
		return full
	}
	return few
}

// newFilter is a filter whose requests have as long as a test waits.
func newFilter(t testing.TB, rdb redis.UniversalClient, capacity uint64) *Redis {
	t.Helper()
	f, err := NewRedis(rdb, "users", capacity, 0.01, &Options{Timeout: testenv.Hang / 2, watchInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// built is a filter of these keys.
func built(t testing.TB, f *Redis, keys ...string) *generation {
	t.Helper()
	ctx := t.Context()
	g, err := f.begin(ctx, f.capacity)
	must(t, err)
	must(t, f.prepare(ctx, g))
	must(t, f.AddMany(ctx, keys))
	must(t, f.activate(ctx, g))
	must(t, f.remove(ctx))
	return g
}

// flush empties all servers.
func flush(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		must(t, cluster.ForEachMaster(t.Context(),
			func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() }))
		return
	}
	must(t, rdb.FlushAll(t.Context()).Err())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mightContain(t testing.TB, f interface {
	MightContain(context.Context, string) (bool, error)
}, key string) bool {
	t.Helper()
	maybe, err := f.MightContain(t.Context(), key)
	must(t, err)
	return maybe
}

func TestRedis(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000) // four segments
		if !mightContain(t, f, "nobody") {
			t.Fatal("a filter that is not there has said no")
		}
		n := sized(5000, 1000)
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprint("key", i)
		}
		merged, single := n*8/10, n*98/100
		built(t, f, keys[:merged]...)
		must(t, f.AddMany(t.Context(), keys[merged:single])) // by merging
		for _, key := range keys[single:] {
			must(t, f.Add(t.Context(), key))
		}
		other := newFilter(t, rdb, 77) // goes by what is there
		for _, f := range []*Redis{f, other} {
			maybe, err := f.MightContainMany(t.Context(), keys)
			must(t, err)
			for i, m := range maybe {
				if !m {
					t.Fatalf("key %d is missed", i)
				}
			}
			absent := make([]string, n)
			for i := range absent {
				absent[i] = fmt.Sprint("absent", i)
			}
			maybe, err = f.MightContainMany(t.Context(), absent)
			must(t, err)
			positives := 0
			for _, m := range maybe {
				if m {
					positives++
				}
			}
			if positives > 5 {
				t.Fatalf("%d of %d absent keys", positives, n)
			}
		}
		s, err := f.State(t.Context())
		must(t, err)
		if s.Keys < uint64(n)*99/100 || s.Keys > uint64(n)*101/100 || s.Capacity != 100_000 || !s.Built {
			t.Fatalf("%+v", s)
		}
		t.Logf("%+v %+v", s, f.Stats())
	})
}

// TestOldGenerationIsLeft: a process that knows only a generation that was removed finds the next.
func TestOldGenerationIsLeft(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, stale := newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
		built(t, f, "a")
		if !mightContain(t, stale, "a") || mightContain(t, stale, "b") {
			t.Fatal("wrong")
		}
		built(t, f, "a", "b")
		if !mightContain(t, stale, "b") {
			t.Fatal("b is missed")
		}
		if mightContain(t, stale, "c") {
			t.Fatal("the new generation is not asked")
		}
		flush(t, rdb)
		if !mightContain(t, stale, "c") {
			t.Fatal("what is lost has said no")
		}
	})
}

// TestMillionAdds adds a million keys at once, and by thousands.
func TestMillionAdds(t *testing.T) {
	n := 20_000
	if os.Getenv("CACHEASIDE_ACCEPT") != "" {
		n = 1_000_000
	}
	rdb := testenv.SharedRedis(t).Client(t)
	for _, at := range []int{n, 1000} {
		f := newFilter(t, rdb, 1_000_000)
		built(t, f)
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprint("key", at, "/", i)
		}
		start := time.Now()
		for part := range slices.Chunk(keys, at) {
			must(t, f.AddMany(t.Context(), part))
		}
		took := time.Since(start)
		s, err := f.State(t.Context())
		must(t, err)
		t.Logf("%d keys, %d at once: %v; estimated: %d", n, at, took.Round(time.Millisecond), s.Keys)
		if d := float64(s.Keys)/float64(n) - 1; d > 0.01 || d < -0.01 {
			t.Errorf("estimated %d keys of %d", s.Keys, n)
		}
	}
}

// TestManyAsked: a lookup of many keys uses several scripts, because the server serves no other
// client while one runs.
func TestManyAsked(t *testing.T) {
	pairs(t, func(t *testing.T, tapped, rdb redis.UniversalClient) {
		f, other := newFilter(t, tapped, 1000), newFilter(t, rdb, 1000)
		g := built(t, other, numbered(1000)...)
		most := 0
		hook(tapped, &tap{before: func(cmds []redis.Cmder) error {
			for _, cmd := range cmds {
				if places, ok := cmd.Args()[len(cmd.Args())-1].(string); ok && strings.HasPrefix(cmd.Name(), "eval") {
					most = max(most, len(places))
				}
			}
			return nil
		}})
		keys := append(numbered(1000), someKeys("absent", sized(9000, 2000))...)
		maybe, err := f.MightContainMany(t.Context(), keys)
		must(t, err)
		found := 0
		for i, m := range maybe {
			if m {
				found++
			} else if i < 1000 {
				t.Fatalf("key %d is missed", i)
			}
		}
		if found > 1500 || most == 0 || most > 4*maxKeysPerScript*int(g.K) {
			t.Errorf("%d found, up to %d bytes of places", found, most)
		}
	})
}

// TestManyAddedFarAway: many announcements take many trips, and each may take its time.
func TestManyAddedFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		f, err := NewRedis(rdb, "users", 1000, 0.01, nil)
		must(t, err)
		defer f.Close()
		built(t, f)
		hook(rdb, &tap{before: func([]redis.Cmder) error { time.Sleep(f.options.Timeout / 2); return nil }})
		must(t, f.AddMany(t.Context(), numbered(40*maxAnnounced)))
	})
}

// TestLostSegments: State reports the lost parts of a filter, and changes nothing.
func TestLostSegments(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 1_000_000)
		if s, err := f.State(t.Context()); s.LostSegments != 0 || err != nil {
			t.Errorf("of none it is %d, %v", s.LostSegments, err)
		}
		g := built(t, f, "a", "b")
		s, err := f.State(t.Context())
		if err != nil || s.Generation != g.ID || s.Segments != g.Segments || s.Hashes != g.K ||
			s.Bits != g.Segments*g.Bits || s.Begun.IsZero() || s.Next != "" || s.Old != 0 {
			t.Errorf("%+v of %+v, %v", s, g, err)
		}
		if s, err := f.State(t.Context()); s.LostSegments != 0 || err != nil {
			t.Errorf("of all that is there it is %d, %v", s.LostSegments, err)
		}
		for i, change := range []func(key string) error{
			func(key string) error { return rdb.Del(t.Context(), key).Err() },
			func(key string) error { return rdb.Set(t.Context(), key, "", 0).Err() },
			func(key string) error { return rdb.Set(t.Context(), key, "something else", 0).Err() },
		} {
			if err := change(segmentKey("cacheaside", "users", g.ID, uint64(i))); err != nil {
				t.Fatal(err)
			}
			if s, err := f.State(t.Context()); s.LostSegments != uint64(i+1) || err != nil {
				t.Errorf("it is %d, %v, want %d", s.LostSegments, err, i+1)
			}
		}
	})
}
