//go:build !race

package bounded_test

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// heap returns the size of the heap after a garbage collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools and finalizers have kept
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// table is a cache without Redis, and rows that change: all of them live in the memory tier.
type table[V any] struct {
	*cacheaside.Loader[int, V]
	cache  *cacheaside.Cache
	row    func(key int) V
	budget int64
	before int64
}

func newTable[V any](t *testing.T, budget int64, row func(key int) V) *table[V] {
	t.Helper()
	d := &table[V]{row: row, budget: budget, before: heap()}
	cache, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: budget, MaxLoads: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	d.cache = cache
	d.Loader, err = cacheaside.NewBatchLoader(cache, "row", func(_ context.Context, keys []int) (map[int]V, error) {
		rows := make(map[int]V, len(keys))
		for _, key := range keys {
			rows[key] = d.row(key)
		}
		return rows, nil
	}, &cacheaside.LoaderOptions{TTL: time.Hour, MemoryTTL: time.Hour, EarlyRefresh: -1, BatchSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// reload loads keys 0 to n-1 again, as they are now.
func (d *table[V]) reload(t *testing.T, n int) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		keys := make([]int, min(1000, n-from))
		for i := range keys {
			keys[i] = from + i
		}
		d.again(t, keys)
	}
}

func (d *table[V]) again(t *testing.T, keys []int) {
	t.Helper()
	named := make([]cacheaside.Key, len(keys))
	for i, key := range keys {
		named[i] = d.Key(key)
	}
	if err := d.cache.RefreshKeys(t.Context(), named...); err != nil {
		t.Error(err)
	}
}

// hits is how many of keys 0 to n-1 memory has.
func (d *table[V]) hits(t *testing.T, n int) int {
	t.Helper()
	before := d.Stats()
	for key := range n {
		if _, err := d.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	return int(d.Stats().MemoryHits - before.MemoryHits)
}

// bounded fails if the tier takes more than its budget and a quarter.
func (d *table[V]) bounded(t *testing.T, step string) {
	t.Helper()
	time.Sleep(10 * time.Millisecond) // what is queued in the tier is applied soon; if it is not, that counts too
	took := heap() - d.before
	t.Logf("%s: %.1f MiB of %.1f", step, float64(took)/mib, float64(d.budget)/mib)
	if took > d.budget*5/4+mib { // what the tests have themselves
		t.Errorf("%s: the memory tier takes %.1f MiB, its budget is %.1f", step, float64(took)/mib,
			float64(d.budget)/mib)
	}
}

func TestRowsThatGrow(t *testing.T) {
	n, budget := rows(40_000, 10_000), int64(rows(32, 8)*mib)
	length := 0
	d := newTable(t, budget, func(int) string { return strings.Repeat("x", length) })
	for _, length = range []int{100, 400, 1600, 8192} {
		d.reload(t, n)
		d.bounded(t, "growing rows")
	}
	for _, length = range []int{1600, 400, 100} {
		d.reload(t, n)
		d.bounded(t, "shrinking rows")
	}
	if few := n / 20; d.hits(t, few) < few/2 { // of those that fit
		t.Errorf("of %d rows that are small again few are in memory", few)
	}
}

func TestMemoryBytesOutOfRange(t *testing.T) {
	for _, bytes := range []int64{1, 64<<10 - 1, min(1<<40, math.MaxInt) + 1, 1<<40 + 1, math.MaxInt64} {
		_, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: bytes})
		if err == nil || !strings.Contains(err.Error(), "Options.MemoryBytes") {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
}

func TestOneRowThatGrows(t *testing.T) {
	length := 0
	d := newTable(t, mib, func(int) []byte { return make([]byte, length) })
	for length = 1000; length < rows(200, 20)*mib; length *= 3 {
		d.reload(t, 1)
		d.bounded(t, "one row")
	}
	if d.Stats().TooHeavy == 0 {
		t.Error("that a row is too large for memory was not counted")
	}
	length = 1000
	d.reload(t, 1)
	if d.hits(t, 1) == 0 {
		t.Error("the row is small again, and not in memory")
	}
}

type deep struct {
	Small [4200]string
	Large []byte
}

func TestRowsOfManyFields(t *testing.T) {
	d := newTable(t, 16*mib, func(int) *deep { return &deep{Large: make([]byte, mib)} })
	d.reload(t, rows(250, 60))
	d.bounded(t, "a large field behind many small ones")
}

type link struct {
	Text string
	Next *link
}

func TestRowsOfManyParts(t *testing.T) {
	n := rows(300, 60)
	d := newTable(t, 16*mib, func(int) *link {
		var list *link
		for range 20_000 {
			list = &link{Text: strings.Repeat("x", 33), Next: list}
		}
		return list
	})
	d.reload(t, n)
	d.bounded(t, "long lists")
}

func TestRowsOfMaps(t *testing.T) {
	n := rows(100_000, 20_000)
	d := newTable(t, 8*mib, func(int) map[int64][100]byte { return map[int64][100]byte{1: {}} })
	d.reload(t, n)
	d.bounded(t, "maps of one")
	large := newTable(t, 8*mib, func(int) map[string]*link {
		m := make(map[string]*link)
		for i := range 900 {
			m[strings.Repeat("k", i%50)+string(rune(i))] = &link{}
		}
		return m
	})
	large.reload(t, n/100)
	large.bounded(t, "maps of many")
}

// A pointer to what many rows share may be counted for each of them.
func TestRowsThatShare(t *testing.T) {
	shared := &link{Text: strings.Repeat("x", 1000)}
	d := newTable(t, 4*mib, func(int) *link { return &link{Next: shared} })
	d.reload(t, 10_000)
	d.bounded(t, "rows that share")
}

func TestKeysOfLongerTexts(t *testing.T) {
	const budget = 4 * mib
	before := heap()
	cache, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: budget})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	l, err := cacheaside.NewLoader(cache, "row", func(context.Context, string) (int, error) { return 1, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		request := strings.Repeat(string(rune('a'+i)), 100<<10)
		if _, err := l.Get(t.Context(), request[:20]); err != nil {
			t.Fatal(err)
		}
	}
	if took := heap() - before; took > budget*5/4+mib {
		t.Errorf("keys cut from long texts take %.1f MiB of %d", float64(took)/mib, budget/mib)
	}
}

func TestRowsThatGrowConcurrently(t *testing.T) {
	budget := int64(rows(32, 8) * mib)
	n := rows(4000, 1000)
	var most atomic.Int64
	d := newTable(t, budget, func(int) []byte { return make([]byte, rand.N(most.Load())) })
	for _, m := range []int64{1000, 30_000, 300_000, 3_000} {
		most.Store(m)
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				for range n / 8 {
					d.again(t, []int{rand.N(n), rand.N(n)})
				}
			})
		}
		writers.Wait()
		d.bounded(t, "writers beside each other")
	}
}

// Many small rows leave tables behind that are large.
func TestLargeRowsAfterManySmallOnes(t *testing.T) {
	n, budget := rows(300_000, 80_000), int64(rows(32, 8)*mib)
	length := 1
	d := newTable(t, budget, func(int) string { return strings.Repeat("x", length) })
	d.reload(t, n)
	d.bounded(t, "small rows")
	length = 8192
	d.reload(t, n/10)
	d.bounded(t, "large rows")
}

// A value in memory does not keep a long key alive that stands before it in Redis.
func TestValuesOfLongKeys(t *testing.T) {
	const budget, n = 8 * mib, 200
	rdb := testenv.SharedRedis(t).Client(t)
	newLoader := func() *cacheaside.Loader[int, []byte] {
		cache, err := cacheaside.New(rdb, &cacheaside.Options{MemoryBytes: budget, RedisTimeout: testenv.Hang,
			ReadTimeout: testenv.Hang, MaxStaleness: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cache.Close() })
		l, err := cacheaside.NewLoader(cache, "row",
			func(context.Context, int) ([]byte, error) { return []byte("v"), nil }, &cacheaside.LoaderOptions{
				Key: cacheaside.KeyOf(func(key int) string { return strings.Repeat("x", 50_000) + strconv.Itoa(key) }),
			})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	read := func(l *cacheaside.Loader[int, []byte]) {
		for key := range n {
			if v, err := l.Get(t.Context(), key); err != nil || string(v) != "v" {
				t.Fatal(string(v), err)
			}
		}
	}
	read(newLoader())
	l := newLoader()
	testenv.Eventually(t, "a trusted memory tier", func() bool {
		_, err := l.Get(t.Context(), -1)
		return err != nil || l.Stats().MemoryHits > 0
	})
	before := heap()
	read(l)
	took := heap() - before
	if l.Stats().RedisHits < n {
		t.Errorf("%d hits in Redis", l.Stats().RedisHits)
	}
	if took > n*2000+mib {
		t.Errorf("%d values of a byte take %.1f MiB", n, float64(took)/mib)
	}
}
