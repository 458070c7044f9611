package promises

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Redis is emptied while 256 goroutines read. The loads stay within their limit, the most requested
// keys come back first, and the others follow.
func TestFlushUnderLoad(t *testing.T) {
	server := testenv.StartRedis(t)
	var out figures
	defer out.print(t)
	limited := cacheaside.Options{MaxLoads: 50, MaxQueue: 10_000, QueueTimeout: testenv.Hang}
	small := limited
	small.MaxQueue = 10
	for _, c := range []struct {
		name string
		o    cacheaside.Options
	}{
		{"MaxLoads 50, MaxQueue 10,000", limited},
		{"MaxLoads 50, MaxQueue 10", small},
		{"no limit", cacheaside.Options{MaxLoads: -1}},
	} {
		if c.o.MaxLoads < 0 && !accepting { // it is only for comparison
			continue
		}
		if err := server.Client(t).FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		c.o.MemoryBytes, c.o.RedisTimeout, c.o.ReadTimeout, c.o.LeaseTTL = -1, testenv.Hang, testenv.Hang, time.Minute
		f := newFlush(t, server, c.o)
		f.run(t)
		out.add("%-29s hits %3.0f %%, after FLUSHALL %3.0f %% at the worst: back at 90 %% of that after %v, when %d "+
			"of %d keys had been loaded; loads at once %d; errors %.2f %% (%s), the longest took %v",
			c.name+":", 100*f.before, 100*slices.Min(f.shares), f.recovered, f.loadedBy, f.keys, f.db.most.Load(),
			100*f.after.errorShare(), f.after.errors(), quantile(f.after.failed, 1))
		f.check(t, c.name, c.o)
	}
}

const flushReaders = 256

// flush is one run.
type flush struct {
	server *testenv.Redis
	keys   int
	small  bool  // a small queue
	limit  int64 // maximum of concurrent loads
	db     *bigTable
	p      reader
	zipf   []*rand.Zipf // one per goroutine

	order  []atomic.Int64 // position of each key's first load since the flush
	loaded atomic.Int64
	full   chan struct{} // closed when no place is left: until then no load ends

	before    float64 // the share of hits
	shares    []float64
	recovered time.Duration // time since the flush
	loadedBy  int64         // keys loaded by then
	after     seen
}

func newFlush(t *testing.T, server *testenv.Redis, o cacheaside.Options) *flush {
	f := &flush{server: server, keys: 4000, small: o.MaxQueue == 10, limit: int64(o.MaxLoads),
		zipf: make([]*rand.Zipf, flushReaders), full: make(chan struct{})}
	if accepting {
		f.keys = 20_000
	}
	f.db = newRows(f.keys, 0)
	f.p = newReader(t, server, f.db.load, o, &cacheaside.LoaderOptions{EarlyRefresh: -1, LoadTimeout: time.Minute})
	f.fillUp(t)
	f.order = make([]atomic.Int64, f.keys)
	f.db.begun = func(key int, _ int64) {
		if f.order[key].Load() == 0 { // a key has one load at a time
			f.order[key].Store(f.loaded.Add(1))
		}
		<-f.full
	}
	return f
}

// fillUp reads each key once, while the database is fast.
func (f *flush) fillUp(t *testing.T) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range 16 { // at most the limit of each of the options
		all.Go(func() {
			for key := int(next.Add(1)) - 1; key < f.keys; key = int(next.Add(1)) - 1 {
				if _, err := f.p.Get(t.Context(), key); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func (f *flush) run(t *testing.T) {
	warm, takes := 200*time.Millisecond, 5*time.Millisecond
	if accepting {
		warm = 3 * time.Second
	}
	f.db.takes.Store(int64(takes))
	parts := make([]seen, flushReaders)
	var flushed atomic.Bool
	stop := swarm(flushReaders, 1, func(g int, r *rand.Rand) {
		if f.zipf[g] == nil {
			f.zipf[g] = demand(r, f.keys)
		}
		count := flushed.Load()
		began := time.Now()
		_, err := f.p.Get(t.Context(), int(f.zipf[g].Uint64()))
		if count {
			parts[g].add(time.Since(began), err)
		}
	})
	defer func() {
		stop()
		for g := range parts {
			f.after.merge(&parts[g])
		}
	}()
	time.Sleep(warm / 2)
	last := f.p.Stats()
	time.Sleep(warm / 2)
	f.before = hitShare(last, f.p.Stats())
	f.db.most.Store(0)
	flushed.Store(true)
	if err := f.server.Client(t).FlushAll(t.Context()).Err(); err != nil {
		t.Error(err)
		return
	}
	f.fill(t)
	f.follow(t)
}

// fill waits until all places are taken. With a small queue, it also waits until a caller was
// refused; that must be immediate, because no load ends before.
func (f *flush) fill(t *testing.T) {
	defer close(f.full)
	waitFor(t, func() bool {
		return f.p.Stats().Unavailable > 0 || !f.small &&
			(f.limit > 0 && f.db.now.Load() >= f.limit || f.limit < 0 && f.db.now.Load() > 50)
	})
}

// follow records the share of hits in windows of 50 ms until it has recovered and the hottest keys
// are back.
func (f *flush) follow(t *testing.T) {
	flushed := time.Now()
	for last := f.p.Stats(); ; {
		time.Sleep(50 * time.Millisecond)
		now := f.p.Stats()
		share := hitShare(last, now)
		last = now
		f.shares = append(f.shares, share)
		if f.recovered == 0 && share >= 0.9*f.before {
			f.recovered, f.loadedBy = time.Since(flushed).Round(10*time.Millisecond), f.loaded.Load()
		}
		if f.recovered > 0 && !slices.Contains(f.hottest(), 0) {
			return
		}
		if time.Since(flushed) > testenv.Hang {
			t.Errorf("the share of hits has not recovered after %v: %.2f", time.Since(flushed), f.shares)
			return
		}
	}
}

// hottest returns the sorted positions of the 100 hottest keys in the order of loads. A key that
// has not been loaded has position 0.
func (f *flush) hottest() []int64 {
	places := make([]int64, 100)
	for i := range places {
		places[i] = f.order[i].Load()
	}
	slices.Sort(places)
	return places
}

func (f *flush) check(t *testing.T, name string, o cacheaside.Options) {
	t.Helper()
	most := f.db.most.Load()
	if o.MaxLoads > 0 && most > int64(o.MaxLoads) {
		t.Errorf("%s: %d concurrent loads", name, most)
	}
	// In 200 of 200 simulations of the demand, all of them were among the first 2,048 keys, and
	// half of them among the first 264. The readers may change the order by as many keys as there
	// are readers.
	if places := f.hottest(); places[99] > 3000 || places[49] > 264+2*flushReaders {
		t.Errorf("%s: the last of the hottest 100 keys is loaded at position %d, the 50th at %d",
			name, places[99], places[49])
	}
	notMade := f.p.Stats().Unavailable
	switch o.MaxQueue {
	case 10:
		f.after.only(t, unavailable)
		if (notMade > 0) != (len(f.after.failed) > 0) || len(f.after.failed) == 0 {
			t.Errorf("%s: %d calls not made, %d reads failed", name, notMade, len(f.after.failed))
		}
		// A refused call fails immediately; see fill.
		if longest := quantile(f.after.failed, 1); longest > o.QueueTimeout/2 {
			t.Errorf("%s: an error takes %v", name, longest)
		}
	default:
		f.after.only(t)
		if notMade != 0 {
			t.Errorf("%s: %d calls not made", name, notMade)
		}
	}
}
