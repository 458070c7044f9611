//go:build !race

// Package allocs_test counts the allocations of a hit. The race detector allocates by itself, so
// these tests are for a build without it; being few, they are compiled in a moment.
package allocs_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// local makes a cache without Redis.
func local(t *testing.T) *cacheaside.Cache {
	t.Helper()
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// inMemory repeats get until it is a hit in memory.
func inMemory(t *testing.T, c *cacheaside.Cache, get func()) {
	t.Helper()
	testenv.Eventually(t, "a hit in memory", func() bool {
		before := c.Stats().MemoryHits
		get()
		return c.Stats().MemoryHits == before+1
	})
}

// fewest returns the fewest allocations that f was seen to make. It tries again if there were more
// than enough, for two reasons. Those of the rest of the process are counted, too. And on a busy
// machine Redis may reply so late that the hits of the next 5 seconds do not run on the goroutine
// of their caller, which costs 12 allocations more. So runs must be few enough that such replies
// do not spoil every try.
func fewest(enough float64, runs int, f func()) float64 {
	n := math.Inf(1)
	for began := time.Now(); n > enough && time.Since(began) < testenv.Hang; time.Sleep(time.Millisecond) {
		n = min(n, testing.AllocsPerRun(runs, f))
	}
	return n
}

func TestMemoryHitAllocatesNothing(t *testing.T) {
	c := local(t)
	type row struct{ A, B int }
	ints, err := cacheaside.NewLoader(c, "ints",
		func(_ context.Context, key int64) (row, error) { return row{1, 2}, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	strings, err := cacheaside.NewLoader(c, "strings", func(_ context.Context, key string) (*row, error) {
		if key == "none" {
			return nil, cacheaside.ErrNotFound
		}
		return &row{1, 2}, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, get := range map[string]func(){
		"int64":  func() { ints.Get(t.Context(), 123456789) },
		"string": func() { strings.Get(t.Context(), "some key of a usual length") },
		"null":   func() { strings.Get(t.Context(), "none") },
	} {
		inMemory(t, c, get)
		before := c.Stats()
		n := testing.AllocsPerRun(1000, get)
		if hits := c.Stats().MemoryHits - before.MemoryHits; hits != 1001 {
			t.Errorf("%s: %d hits", name, hits)
		}
		if n = min(n, fewest(0, 1000, get)); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestHitNearItsEndAllocatesNothing: a hit near the end of its TTL decides at random whether it
// refreshes the entry (TestEachHitNearExpiryMayRefreshEarly counts that). If not, it allocates
// nothing.
func TestHitNearItsEndAllocatesNothing(t *testing.T) {
	c := local(t)
	l, err := cacheaside.NewLoader(c, "row", func(_ context.Context, key int64) (int, error) {
		time.Sleep(10 * time.Millisecond)
		return 1, nil
	}, &cacheaside.LoaderOptions{TTL: 20 * time.Second, Jitter: -1, EarlyRefresh: 100}) // near is 32 s before the end
	if err != nil {
		t.Fatal(err)
	}
	get := func() { l.Get(t.Context(), 123456789) }
	inMemory(t, c, get)
	if n := fewest(0, 100, get); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// refuser is a filter without keys.
type refuser struct{ cacheaside.Filter }

func (refuser) MightContain(context.Context, string) (bool, error) { return false, nil }

func (refuser) MightContainNow(string) (may, known bool) { return false, true }

// TestRefusedGetAllocations: a refused Get allocates its round, and no more.
func TestRefusedGetAllocations(t *testing.T) {
	c := local(t)
	l, err := cacheaside.NewLoader(c, "row", func(context.Context, string) (string,
		error) {
		return "", cacheaside.ErrNotFound
	}, &cacheaside.LoaderOptions{Filter: refuser{}})
	if err != nil {
		t.Fatal(err)
	}
	if n := fewest(1, 1000, func() { l.Get(t.Context(), "some key of a usual length") }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// cached returns a client of a real Redis, a cache, and a loader of texts whose keys 0 to 99 are in
// Redis.
func cached(
	t *testing.T, memoryBytes int64,
) (*redis.Client, *cacheaside.Cache, *cacheaside.Loader[int, string], []int) {
	t.Helper()
	o := testenv.SharedRedis(t).Options()
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = testenv.Hang, testenv.Hang, testenv.Hang, testenv.Hang
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	c, err := cacheaside.New(rdb, &cacheaside.Options{MemoryBytes: memoryBytes, RedisTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	load := func(_ context.Context, keys []int) (map[int]string, error) {
		rows := make(map[int]string, len(keys))
		for _, key := range keys {
			rows[key] = strconv.Itoa(key)
		}
		return rows, nil
	}
	l, err := cacheaside.NewBatchLoader(c, "row", load, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]int, 100)
	for i := range keys {
		keys[i] = i
	}
	if rows, err := l.GetMany(t.Context(), keys); err != nil || len(rows) != len(keys) {
		t.Fatal(len(rows), err)
	}
	return rdb, c, l, keys
}

// TestPutAllocations: a hit in Redis that is put into memory allocates no more than any other.
func TestPutAllocations(t *testing.T) {
	count := func(memoryBytes int64, enough float64) float64 {
		_, c, l, keys := cached(t, memoryBytes)
		testenv.Eventually(t, "trust in memory", func() bool {
			s := c.Stats().Bus
			return memoryBytes < 0 || s.Trusted == s.Ranges && s.Ranges > 0
		})
		fresh := []cacheaside.ReadOption{cacheaside.Fresh} // does not look into memory, but puts the rows there
		n := fewest(enough, 5, func() {
			if rows, err := l.GetMany(t.Context(), keys, fresh...); err != nil || len(rows) != len(keys) {
				t.Fatal(len(rows), err)
			}
		})
		before := c.Stats().MemoryHits
		if _, err := l.GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		if hits := c.Stats().MemoryHits - before; memoryBytes >= 0 && hits < 90 { // a table place may be shared
			t.Errorf("%d hits in memory", hits)
		}
		return n
	}
	without := count(-1, 10_000) // a late reply makes it more, which only weakens the comparison
	with := count(64<<20, without+2)
	t.Logf("100 hits: %v allocations without memory, %v with it", without, with)
	if with > without+2 {
		t.Errorf("100 hits: %v allocations without memory, %v with it", without, with)
	}
}

// TestRedisHitAllocations: a hit in Redis allocates little more than go-redis does for the same.
func TestRedisHitAllocations(t *testing.T) {
	rdb, c, l, keys := cached(t, -1)
	many := func() {
		if rows, err := l.GetMany(t.Context(), keys); err != nil || len(rows) != len(keys) {
			t.Fatal(len(rows), err)
		}
	}
	name := func(key int) string { return fmt.Sprintf("cacheaside:row:1:{%d}", key) }
	raw := testing.AllocsPerRun(200, func() {
		if err := rdb.Get(t.Context(), name(1)).Err(); err != nil {
			t.Fatal(err)
		}
	})
	before := c.Stats().Loads
	library := fewest(raw+9, 20, func() { l.Get(t.Context(), 1) })
	t.Logf("a hit: %v allocations, a raw GET: %v", library, raw)
	if library > raw+9 {
		t.Errorf("a hit: %v allocations, a raw GET: %v", library, raw)
	}
	raw = testing.AllocsPerRun(50, func() {
		pipe := rdb.Pipeline()
		for key := range 100 {
			pipe.Get(t.Context(), name(key))
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	library = fewest(raw+116, 5, many)
	t.Logf("100 hits: %v allocations, a raw pipeline: %v", library, raw)
	if library > raw+116 {
		t.Errorf("100 hits: %v allocations, a raw pipeline: %v", library, raw)
	}
	if n := c.Stats().Loads - before; n != 0 {
		t.Errorf("%d loads", n)
	}
}
