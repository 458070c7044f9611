//go:build accept

package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A hitReader is one way to read rows from Redis. Each instance has empty memory.
type hitReader struct {
	name string
	open func(t *testing.T) (get func(ctx context.Context, i int) error, end func())

	// Of each run: 1,000 reads per second; CPU time of this process per read, µs.
	rates, used []float64
}

// hitBars are the goals for the library with default options: ratios to reading by hand in the same
// run, by the number of goroutines. docs/decisions/batching.md lists those that are missed.
var hitBars = map[string]map[int]float64{
	"single":  {1: 0.97, 4: 0.97, 16: 1.14, 64: 1.77, 128: 1.96},
	"cluster": {1: 0.97, 4: 0.95, 16: 1.13, 64: 1.41, 128: 1.71},
}

// TestRedisHitGoroutines reads rows of about 300 bytes from Redis, on several numbers of
// goroutines: by hand (GET and JSON), with the AutoPipeline of go-redis, and with this library.
// Each instance reads a key once, so memory serves no read. The ways take turns, so their ratios
// are meaningful on a busy machine too.
func TestRedisHitGoroutines(t *testing.T) {
	for _, kind := range []string{"single", "cluster"} {
		t.Run(kind, func(t *testing.T) {
			readers := hitReaders(t, kind)
			for _, goroutines := range []int{1, 4, 16, 64, 128} {
				t.Run(strconv.Itoa(goroutines), func(t *testing.T) {
					n := testenv.AtSize(1, 10) * min(goroutines, 32) * 100 * max(1, 8/goroutines)
					for run := range testenv.AtSize(1, 9) {
						for i := range readers {
							readers[(run+i)%len(readers)].run(t, goroutines, n)
						}
					}
					reportHits(t, readers, hitBars[kind][goroutines])
				})
			}
		})
	}
}

// reportHits logs the medians, and compares the library with default options with reading by hand.
func reportHits(t *testing.T, readers []*hitReader, bar float64) {
	hand := readers[0].rates
	for _, r := range readers {
		ratios := make([]float64, len(r.rates))
		for i, rate := range r.rates {
			ratios[i] = rate / hand[i]
		}
		t.Logf("%-11s %-26s %6.1f thousand a second (%.1f to %.1f), %.2f of by hand, %5.1f us of CPU (%.1f)",
			strings.TrimPrefix(t.Name(),
				"TestRedisHitGoroutines/"), r.name, middle(r.rates), slices.Min(r.rates), slices.Max(r.rates), middle(
				ratios), middle(r.used), slices.Min(r.used))
		if r.name == "cacheaside" && testenv.Accepting && middle(ratios) < bar {
			t.Errorf("%.2f of by hand, want %.2f", middle(ratios), bar)
		}
		r.rates, r.used = nil, nil
	}
}

func middle(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// run reads n rows on all goroutines together, with a new instance.
func (h *hitReader) run(t *testing.T, goroutines, n int) {
	t.Helper()
	get, end := h.open(t)
	defer end()
	debug.FreeOSMemory()
	each := n / goroutines
	cpu, began := cpuTime(t), time.Now()
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				if err := get(context.Background(), g*each+i); err != nil {
					t.Error(h.name, err)
					return
				}
			}
		})
	}
	all.Wait()
	took, used := time.Since(began), cpuTime(t)-cpu
	h.rates = append(h.rates, float64(each*goroutines)/took.Seconds()/1000)
	h.used = append(h.used, float64(used.Nanoseconds())/float64(each*goroutines)/1000)
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const hitKeys = 33_000

// hitReaders returns the ways to read hitKeys rows of a single server or a cluster, with clients
// that have default options except ContextTimeoutEnabled. The first way is by hand.
func hitReaders(t *testing.T, kind string) []*hitReader {
	var client func() redis.UniversalClient
	duplex := &redis.AutoPipelineOptions{FullDuplex: true}
	var auto, full redis.Cmdable
	var err, err2 error
	if kind == "cluster" {
		addrs := testenv.SharedCluster(t).Addrs
		client = func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		}
		auto, err = hitClient(t, client).(*redis.ClusterClient).AutoPipeline()
		full, err2 = hitClient(t, client).(*redis.ClusterClient).AutoPipelineWithOptions(duplex)
	} else {
		addr := testenv.SharedRedis(t).Addr
		client = func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		}
		auto, err = hitClient(t, client).(*redis.Client).AutoPipeline()
		full, err2 = hitClient(t, client).(*redis.Client).AutoPipelineWithOptions(duplex)
	}
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	rdb := hitClient(t, client)
	fillHits(t, rdb)
	plain, none := hitClient(t, client), hitClient(t, client)
	return []*hitReader{
		readByHand("GET + JSON", rdb),
		readByHand("AutoPipeline", auto),
		readByHand("AutoPipeline, full duplex", full),
		{name: "cacheaside, MemoryBytes -1", open: func(t *testing.T) (func(context.Context, int) error, func()) {
			return openHits(t, none, &cacheaside.Options{MemoryBytes: -1})
		}},
		{name: "cacheaside", open: func(t *testing.T) (func(context.Context, int) error, func()) {
			return openHits(t, plain, nil)
		}},
	}
}

func hitClient(t *testing.T, client func() redis.UniversalClient) redis.UniversalClient {
	rdb := client()
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// fillHits stores all rows, once for reading by hand and once as the library stores them.
func fillHits(t *testing.T, rdb redis.UniversalClient) {
	pipe := rdb.Pipeline()
	ids := make([]int64, hitKeys)
	for i := range ids {
		ids[i] = int64(i)
		v, _ := json.Marshal(row(ids[i]))
		pipe.Set(t.Context(), "hand:"+strconv.Itoa(i), v, time.Hour)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, l := newHitLoader(t, rdb, &cacheaside.Options{MemoryBytes: -1})
	defer c.Close()
	for part := range slices.Chunk(ids, 1000) {
		if found, err := l.GetMany(t.Context(), part); len(found) != len(part) || err != nil {
			t.Fatal(len(found), err)
		}
	}
}

func newHitLoader(
	t *testing.T, rdb redis.UniversalClient, o *cacheaside.Options,
) (*cacheaside.Cache, *cacheaside.Loader[int64, benchRow]) {
	own := cacheaside.Options{RedisTimeout: time.Second, ReadTimeout: time.Second} // for a busy machine
	if o != nil {
		own.MemoryBytes = o.MemoryBytes
	}
	c, err := cacheaside.New(rdb, &own)
	if err != nil {
		t.Fatal(err)
	}
	l, err := cacheaside.NewBatchLoader(c, "row", func(_ context.Context, ids []int64) (map[int64]benchRow, error) {
		rows := make(map[int64]benchRow)
		for _, id := range ids {
			rows[id] = row(id)
		}
		return rows, nil
	}, &cacheaside.LoaderOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return c, l
}

func readByHand(name string, rdb redis.Cmdable) *hitReader {
	return &hitReader{name: name, open: func(t *testing.T) (func(context.Context, int) error, func()) {
		return func(ctx context.Context, i int) error {
			payload, err := rdb.Get(ctx, "hand:"+strconv.Itoa(i)).Bytes()
			if err != nil {
				return err
			}
			var v benchRow
			return json.Unmarshal(payload, &v)
		}, func() {}
	}}
}

// openHits opens an instance and reads some rows that the run does not read. So it has connections,
// and knows the state of each part of a cluster.
func openHits(
	t *testing.T, rdb redis.UniversalClient, o *cacheaside.Options,
) (func(context.Context, int) error, func()) {
	c, l := newHitLoader(t, rdb, o)
	ids := make([]int64, 200)
	for i := range ids {
		ids[i] = int64(hitKeys - 1 - i)
	}
	for range 2 {
		if _, err := l.GetMany(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // until the subscription is confirmed
	}
	loaded := l.Stats().Loads
	return func(ctx context.Context, i int) error {
			v, err := l.Get(ctx, int64(i))
			if err == nil && v.ID != int64(i) {
				err = fmt.Errorf("row %d", v.ID)
			}
			return err
		}, func() {
			if s := l.Stats(); s.Loads != loaded {
				t.Errorf("%d loads, %d errors of Redis", s.Loads-loaded, s.RedisErrors)
			}
			c.Close()
			runtime.GC()
		}
}
