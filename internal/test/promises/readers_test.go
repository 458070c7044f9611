package promises

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The long outage tests share a database for many concurrent loads, and readers that count their
// results. Figures are printed in one block per test, a run without the feature next to those with
// it.

// bigTable stands in for a database of rows whose versions grow. Unlike table it has no lock, so
// that many loads can run concurrently.
type bigTable struct {
	rows   []atomic.Int64 // the version of each row
	takes  atomic.Int64   // the time of a load after it has read its row
	broken atomic.Bool    // loads fail

	gauge
	loads atomic.Int64
	begun func(key int, n int64) // if set, called by each load, with its number
}

func newRows(keys int, takes time.Duration) *bigTable {
	s := &bigTable{rows: make([]atomic.Int64, keys)}
	for i := range s.rows {
		s.rows[i].Store(1)
	}
	s.takes.Store(int64(takes))
	return s
}

func (b *bigTable) load(_ context.Context, key int) (int64, error) {
	defer b.up()()
	n := b.loads.Add(1)
	if b.begun != nil {
		b.begun(key, n)
	}
	row := b.rows[key].Load()
	time.Sleep(time.Duration(b.takes.Load()))
	if b.broken.Load() {
		return 0, errBroken
	}
	return row, nil
}

// gauge records the maximum number of concurrent loads.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) up() (down func()) {
	raise(&g.most, g.now.Add(1))
	return func() { g.now.Add(-1) }
}

// of returns the load function of one process.
func (g *gauge) of(s *bigTable) func(context.Context, int) (int64, error) {
	return func(ctx context.Context, key int) (int64, error) {
		defer g.up()()
		return s.load(ctx, key)
	}
}

// raise sets a to n unless a is greater.
func raise(a *atomic.Int64, n int64) {
	for {
		if old := a.Load(); old >= n || a.CompareAndSwap(old, n) {
			return
		}
	}
}

// reader is a process that reads a bigTable.
type reader struct {
	*cacheaside.Loader[int, int64]
	cache *cacheaside.Cache
}

// newReader creates a reader with its own client that keeps deadlines, as Options.RedisTimeout
// recommends.
func newReader(
	t testing.TB, server *testenv.Redis, load func(context.Context, int) (int64, error), o cacheaside.Options,
	lo *cacheaside.LoaderOptions,
) reader {
	t.Helper()
	co := server.Options()
	co.ContextTimeoutEnabled = true
	rdb := redis.NewClient(co)
	t.Cleanup(func() { rdb.Close() })
	r := newReaderOn(t, rdb, load, o, lo)
	hear(t, r.Loader)
	return r
}

func newReaderOn(
	t testing.TB, rdb redis.UniversalClient, load func(context.Context, int) (int64, error), o cacheaside.Options,
	lo *cacheaside.LoaderOptions,
) reader {
	t.Helper()
	c, err := newCache(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", load, lo)
	if err != nil {
		t.Fatal(err)
	}
	return reader{l, c}
}

// seen contains the results of reads of one goroutine, finally of all.
type seen struct {
	waits  []time.Duration
	errs   map[string]int // by kind
	failed []time.Duration
}

func (s *seen) add(wait time.Duration, err error) {
	s.waits = append(s.waits, wait)
	if err == nil {
		return
	}
	if s.errs == nil {
		s.errs = make(map[string]int)
	}
	s.errs[errorKind(err)]++
	s.failed = append(s.failed, wait)
}

func (s *seen) merge(o *seen) {
	s.waits, s.failed = append(s.waits, o.waits...), append(s.failed, o.failed...)
	for kind, n := range o.errs {
		if s.errs == nil {
			s.errs = make(map[string]int)
		}
		s.errs[kind] += n
	}
}

func (s *seen) errorShare() float64 { return float64(len(s.failed)) / float64(max(len(s.waits), 1)) }

// errors returns the kinds of errors as text.
func (s *seen) errors() string {
	if len(s.errs) == 0 {
		return "none"
	}
	var text []string
	for _, kind := range slices.Sorted(maps.Keys(s.errs)) {
		text = append(text, fmt.Sprintf("%d %s", s.errs[kind], kind))
	}
	return strings.Join(text, ", ")
}

// only fails for errors of other kinds than these.
func (s *seen) only(t testing.TB, kinds ...string) {
	t.Helper()
	for kind, n := range s.errs {
		if !slices.Contains(kinds, kind) {
			t.Errorf("%d errors of the kind %q", n, kind)
		}
	}
}

// quantile returns a quantile of durations. 1 is the longest.
func quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	ds = slices.Sorted(slices.Values(ds))
	d := ds[min(int(q*float64(len(ds))), len(ds)-1)]
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

const (
	unavailable = "ErrUnavailable"
	loadFailed  = "ErrLoadFailed"
	loadsOwn    = "of the load itself"
	redisDown   = "ErrRedis"
)

func errorKind(err error) string {
	for kind, is := range map[string]error{
		unavailable: cacheaside.ErrUnavailable, loadFailed: cacheaside.ErrLoadFailed, loadsOwn: errBroken,
		redisDown: cacheaside.ErrRedis, "ErrLoadTimeout": cacheaside.ErrLoadTimeout,
		"ErrNotFound": cacheaside.ErrNotFound,
	} {
		if errors.Is(err, is) {
			return kind
		}
	}
	return fmt.Sprintf("other (%T)", errors.Unwrap(err))
}

// swarm runs n goroutines that call f, each with its own random numbers, until stop is called. stop
// waits for them.
func swarm(n int, seed uint64, f func(g int, r *rand.Rand)) (stop func()) {
	var all sync.WaitGroup
	var over atomic.Bool
	for g := range n {
		all.Go(func() {
			for r := rand.New(rand.NewPCG(seed, uint64(g))); !over.Load(); {
				f(g, r)
			}
		})
	}
	return func() {
		over.Store(true)
		all.Wait()
	}
}

// demand returns the distribution of requested keys. Key 0 is the most frequent.
func demand(r *rand.Rand, keys int) *rand.Zipf { return rand.NewZipf(r, 1.1, 1, uint64(keys-1)) }

// figures is a block of lines.
type figures struct {
	mu    sync.Mutex
	lines []string
}

func (f *figures) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lines = append(f.lines, fmt.Sprintf(format, args...))
}

// print logs the lines one by one, because logs are searched by line.
func (f *figures) print(t testing.TB) {
	t.Helper()
	for _, line := range f.lines {
		t.Log(line)
	}
}

// hitShare returns the share of hits in Redis among the rounds between two Stats that would
// otherwise read the database.
func hitShare(from, to cacheaside.Stats) float64 {
	hits := float64(to.RedisHits - from.RedisHits)
	misses := float64(to.Loads - from.Loads + to.Unavailable - from.Unavailable)
	return hits / max(hits+misses, 1)
}
