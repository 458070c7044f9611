package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// hitGoroutines are the numbers of goroutines that read from Redis.
var hitGoroutines = size([]int{1, 4, 16, 64, 128}, []int{1, 16})

// onceReader is a contender that opens a new cache in each run and reads each key once. So its
// memory tier is filled but never serves.
type onceReader struct {
	name   string
	peer   Peer
	config Config
	took   map[int]*result // by goroutines
	loads  atomic.Int64
}

// onceReaders stores the keys for all peers, and returns the contenders that read them from Redis.
// This library has a second contender without a memory tier.
func onceReaders(
	t *testing.T, peers []Peer, keys []string, start func() (Config, func() int),
) (readers []*onceReader, left []string) {
	t.Helper()
	for _, p := range peers {
		r := &onceReader{name: p.Name, peer: p, took: map[int]*result{}}
		var lookups func() int
		r.config, lookups = start()
		r.config.Patient, r.config.TTL = true, time.Hour
		r.config.Load = func(_ context.Context, key string) (*Row, error) { r.loads.Add(1); return rowOf(key), nil }
		r.readAll(t, keys, 2) // some peers store in the background, and may drop values
		before := lookups()
		r.readAll(t, keys, 1)
		if lookups()-before < len(keys)*9/10 {
			left = append(left, p.Name)
			continue
		}
		r.loads.Store(0)
		readers = append(readers, r)
		if p.Name == own {
			without := &onceReader{name: own + " without memory tier", peer: p, config: r.config,
				took: map[int]*result{}}
			without.config.NoMemory = true
			without.config.Load = func(_ context.Context, key string) (*Row,
				error) {
				without.loads.Add(1)
				return rowOf(key), nil
			}
			readers = append(readers, without)
		}
	}
	return readers, left
}

// readAll reads all keys several times with a new cache and closes it. If it stayed open, its rows
// would lengthen the garbage collections of the measured caches.
func (r *onceReader) readAll(t *testing.T, keys []string, times int) {
	t.Helper()
	c, err := r.peer.Open(r.config)
	if err != nil {
		t.Fatal(r.name, err)
	}
	for range times {
		readEach(t, r.peer, c, keys)
		time.Sleep(20 * time.Millisecond)
	}
	if err := c.Close(); err != nil {
		t.Error(r.name, err)
	}
}

// run reads for about the time each, with a new cache.
func (r *onceReader) run(t *testing.T, keys []string, goroutines int, each time.Duration) {
	t.Helper()
	c, err := r.peer.Open(r.config)
	if err != nil {
		t.Fatal(r.name, err)
	}
	next := make([]int, goroutines)
	r.read(t, c, keys, next, each/4) // warms connections, scripts and adaptive settings
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	n := float64(r.read(t, c, keys, next, each))
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	if err := c.Close(); err != nil {
		t.Error(r.name, err)
	}
	if r.took[goroutines] == nil {
		r.took[goroutines] = &result{name: r.name}
	}
	got := r.took[goroutines]
	got.ns = append(got.ns, float64(took.Nanoseconds())/n)
	got.allocs = float64(after.Mallocs-before.Mallocs) / n
}

// read reads until the time limit, or until a goroutine has read its part of the keys. next holds
// the position of each goroutine in its part.
func (r *onceReader) read(t *testing.T, c Cache, keys []string, next []int, limit time.Duration) (reads int) {
	t.Helper()
	var over atomic.Bool
	timer := time.AfterFunc(limit, func() { over.Store(true) })
	defer timer.Stop()
	part := len(keys) / len(next)
	var count atomic.Int64
	var wg sync.WaitGroup
	for g := range next {
		wg.Go(func() {
			mine := keys[g*part : (g+1)*part]
			first := next[g]
			i := first
			for ; i < len(mine) && !over.Load(); i++ {
				if _, err := c.Get(context.Background(), mine[i]); err != nil {
					t.Error(r.name, err)
					break
				}
			}
			over.Store(true)
			next[g] = i
			count.Add(int64(i - first))
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return max(1, int(count.Load()))
}

// onceContest runs all readers with each number of goroutines, in turns, and publishes two tables
// under the title of table. bars are the limits of the time relative to GET and JSON by hand.
func onceContest(t *testing.T, table *Table, keys []string, readers []*onceReader, bars map[int]float64) {
	t.Helper()
	runs, each := size(9, 2), size(200*time.Millisecond, 5*time.Millisecond)
	for _, goroutines := range hitGoroutines {
		for run := range runs {
			for j := range readers {
				readers[(run+j)%len(readers)].run(t, keys, goroutines, each)
			}
		}
	}
	table.Head = []string{""}
	for _, goroutines := range hitGoroutines {
		table.Head = append(table.Head, fmt.Sprint(goroutines))
	}
	relative := &Table{Section: table.Section, Title: table.Title + ": time of a read relative to " + byHand,
		Head: slices.Clone(table.Head),
		Text: "The median of the ratios of all runs, and in brackets the middle half of them. Below 1 is faster."}
	table.Title += ": thousands of reads per second"
	table.Head = append(table.Head, "allocations, 1 goroutine",
		fmt.Sprintf("%d goroutines", hitGoroutines[len(hitGoroutines)-1]))
	hand := readers[slices.IndexFunc(readers, func(r *onceReader) bool { return r.name == byHand })]
	for _, r := range readers {
		speeds, times := []any{r.name}, []any{r.name}
		for _, goroutines := range hitGoroutines {
			ratio := ratios(r.took[goroutines].ns, hand.took[goroutines].ns)
			speeds = append(speeds, 1e6/median(r.took[goroutines].ns))
			times = append(times, within(ratio))
			if r.name == own {
				bar(t, fmt.Sprintf("%d goroutines, time relative to %s", goroutines, byHand), median(ratio),
					bars[goroutines])
			}
		}
		speeds = append(speeds, r.took[hitGoroutines[0]].allocs, r.took[hitGoroutines[len(hitGoroutines)-1]].allocs)
		table.Row(speeds...)
		relative.Row(times...)
	}
	publish(t, table)
	publish(t, relative)
	for _, r := range readers {
		if n := r.loads.Load(); n > 0 {
			t.Logf("%s has loaded %d rows that were in Redis", r.name, n)
			if r.peer.Name == own {
				t.Error("not all reads are hits")
			}
		}
	}
}

// within formats the median of several figures and, in brackets, their middle half.
func within(v []float64) string { return digits(median(v)) + " (" + spread(v) + ")" }

// onceText describes the work of onceContest.
func onceText(keys []string, where, left string) string {
	return fmt.Sprintf("%s string keys, all in %s. Each hit decodes about 290 bytes of JSON. The caches have their "+
		"memory tiers, and each reads a key only once: a new cache is opened for each run. So a read includes "+
		"putting the row into memory, and never finds it there. The columns are numbers of goroutines.%s",
		thousands(fmt.Sprint(len(keys))), where, left)
}

// serverEach returns a function that starts a server for each peer, so that no peer's data affects
// another. Small workloads share a server, because the names of their keys differ.
func serverEach(t testing.TB) func() *testenv.Redis {
	if full {
		return func() *testenv.Redis { return testenv.StartRedis(t) }
	}
	shared := testenv.SharedRedis(t)
	return func() *testenv.Redis { return shared }
}

// leftOut returns the note that names the peers that do not take part.
func leftOut(why string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " Left out, because " + why + ": " + strings.Join(names, ", ") + "."
}

// TestRedisHitMemory measures hits in Redis that fill a memory tier.
func TestRedisHitMemory(t *testing.T) {
	keys := keys(size(40_000, 600))
	start := serverEach(t)
	readers, left := onceReaders(t, withRedis(entrants(t), Floors()), keys, func() (Config, func() int) {
		server := start()
		return Config{Redis: server.Addr}, func() int { return lookups(t, server) }
	})
	onceContest(t, &Table{Section: 2, Title: "Hits in Redis that fill the memory tier",
		Text: onceText(keys, "Redis", leftOut("a new cache did not read them from Redis", left))}, keys, readers,
		map[int]float64{1: 19.5 / 19, 4: 53.8 / 52, 16: 83.4 / 95, 64: 79.0 / 140, 128: 78.9 / 155})
	first := func(name string) float64 {
		return readers[slices.IndexFunc(readers, func(r *onceReader) bool { return r.name == name })].took[1].allocs
	}
	bar(t, "1 goroutine, allocations more than those of "+byHand, first(own)-first(byHand), 4)
}

// TestClusterHit measures hits in a Redis Cluster of three masters that fill a memory tier.
func TestClusterHit(t *testing.T) {
	keys := keys(size(40_000, 600))
	cluster := testenv.SharedCluster(t)
	peers, apart := onCluster(withRedis(entrants(t), Floors()))
	readers, left := onceReaders(t, peers, keys, func() (Config, func() int) {
		return Config{Cluster: cluster.Addrs}, func() (n int) {
			for _, node := range cluster.Nodes {
				n += lookups(t, node)
			}
			return n
		}
	})
	onceContest(t, &Table{Section: 15, Title: "Hits in a Redis Cluster that fill the memory tier",
		Text: onceText(keys, "a Redis Cluster of three masters, each with a replica that serves no reads",
			leftOut("a new cache did not read them from Redis", left)+leftOut(notOnCluster, apart))}, keys, readers,
		map[int]float64{1: 15 / 14.5, 4: 48.3 / 46, 16: 61.9 / 70, 64: 63.8 / 90, 128: 64.3 / 110})
}

const notOnCluster = "they do not support a cluster, or not for all of this work"

// onCluster separates peers that support clusters from those that do not.
func onCluster(peers []Peer) (with []Peer, without []string) {
	for _, p := range peers {
		if p.Cluster {
			with = append(with, p)
		} else {
			without = append(without, p.Name)
		}
	}
	return with, without
}
