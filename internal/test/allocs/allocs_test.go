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
	c, err := cacheaside.New(nil, &cacheaside.Options{NoRedis: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// inMemory repeats get until memory answers it.
func inMemory(t *testing.T, c *cacheaside.Cache, get func()) {
	t.Helper()
	testenv.Eventually(t, "a hit in memory", func() bool {
		before := c.Stats().MemoryHits
		get()
		return c.Stats().MemoryHits == before+1
	})
}

// fewest allocations that f was seen to make. Those of the rest of the process are counted, too, so
// it is tried some times more if there were more than enough.
func fewest(enough float64, runs int, f func()) float64 {
	n := math.Inf(1)
	for range 50 {
		if n = min(n, testing.AllocsPerRun(runs, f)); n <= enough {
			break
		}
	}
	return n
}

func TestMemoryHitAllocatesNothing(t *testing.T) {
	c := local(t)
	type row struct{ A, B int }
	ints, err := cacheaside.NewLoader(c, "ints", func(_ context.Context, key int64) (row, error) { return row{1, 2}, nil }, nil)
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

// TestHitNearItsEndAllocatesNothing: a hit near the end of its TTL, for which the die of early
// refresh is thrown (TestDieOfEachHitNearTheEnd counts that), makes no round if it is not due.
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

// refuser is a filter that answers at once, and has no keys.
type refuser struct{ cacheaside.Filter }

func (refuser) MightContain(context.Context, string) (bool, error) { return false, nil }

func (refuser) MightContainNow(string) (may, known bool) { return false, true }

// TestRefusedGetAllocations: a refused Get allocates its round, and no more.
func TestRefusedGetAllocations(t *testing.T) {
	c := local(t)
	l, err := cacheaside.NewLoader(c, "row", func(context.Context, string) (string, error) { return "", cacheaside.ErrNotFound }, &cacheaside.LoaderOptions{Filter: refuser{}})
	if err != nil {
		t.Fatal(err)
	}
	if n := fewest(1, 1000, func() { l.Get(t.Context(), "some key of a usual length") }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// TestRedisHitAllocations: a hit in Redis allocates little more than go-redis does for the same.
func TestRedisHitAllocations(t *testing.T) {
	o := testenv.SharedRedis(t).Options()
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = testenv.Hang, testenv.Hang, testenv.Hang, testenv.Hang
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	c, err := cacheaside.New(rdb, &cacheaside.Options{MemoryBytes: -1, RedisTimeout: 10 * time.Second})
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
	many := func() {
		if rows, err := l.GetMany(t.Context(), keys); err != nil || len(rows) != len(keys) {
			t.Fatal(len(rows), err)
		}
	}
	many()
	name := func(key int) string { return fmt.Sprintf("cacheaside:row:1:{%d}", key) }
	raw := testing.AllocsPerRun(200, func() {
		if err := rdb.Get(t.Context(), name(1)).Err(); err != nil {
			t.Fatal(err)
		}
	})
	before := c.Stats().Loads
	own := fewest(raw+9, 200, func() { l.Get(t.Context(), 1) }) // a late answer has the next hits go by another way for a while, which costs more
	t.Logf("a hit: %v allocations, a raw GET: %v", own, raw)
	if own > raw+9 {
		t.Errorf("a hit: %v allocations, a raw GET: %v", own, raw)
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
	own = fewest(raw+215, 50, many)
	t.Logf("100 hits: %v allocations, a raw pipeline: %v", own, raw)
	if own > raw+215 {
		t.Errorf("100 hits: %v allocations, a raw pipeline: %v", own, raw)
	}
	if n := c.Stats().Loads - before; n != 0 {
		t.Errorf("%d loads", n)
	}
}
