package promises

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/binary"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
)

// traceKeys reads the first most keys of a trace: a gzip stream of big-endian 32-bit integers.
func traceKeys(file string, most int) ([]int, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(z, 4*int64(most)))
	keys := make([]int, 0, len(b)/4)
	for ; len(b) >= 4; b = b[4:] {
		keys = append(keys, int(int32(binary.BigEndian.Uint32(b))))
	}
	return keys, err
}

func readTrace(t testing.TB, file string) (keys []int, distinct int) {
	t.Helper()
	keys, err := traceKeys(file, math.MaxInt32)
	if err != nil {
		t.Fatal(err)
	}
	return keys, len(slices.Compact(slices.Sorted(slices.Values(keys))))
}

// Four caches on one Redis replay a real trace on 64 goroutines: each distinct key is loaded
// exactly once in the whole fleet.
func TestTraceIsLoadedOnce(t *testing.T) {
	keys, distinct := readTrace(t, "../../../examples/quickstart/testdata/web12.trace.gz")
	if len(keys) != 95607 || distinct != 13756 {
		t.Fatalf("%d accesses, %d distinct keys", len(keys), distinct)
	}
	replay := func(t *testing.T, b backend, o cacheaside.Options, keys []int) {
		distinct := len(slices.Compact(slices.Sorted(slices.Values(keys))))
		var loads atomic.Int64
		var fleet []*cacheaside.Loader[int, int]
		for range 4 {
			c, err := cacheaside.New(b.client(t), &o)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			l, err := cacheaside.NewLoader(c, "product", func(_ context.Context, key int) (int, error) {
				loads.Add(1)
				return key, nil
			}, &cacheaside.LoaderOptions{TTL: 24 * time.Hour, MemoryTTL: 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			fleet = append(fleet, l)
		}
		var next atomic.Int64
		var wg sync.WaitGroup
		began := time.Now()
		for range 64 {
			wg.Go(func() {
				for {
					i := int(next.Add(1)) - 1
					if i >= len(keys) {
						return
					}
					if v, err := fleet[i%len(fleet)].Get(t.Context(), keys[i]); err != nil || v != keys[i] {
						t.Errorf("Get(%d) = %d, %v", keys[i], v, err)
						return
					}
				}
			})
		}
		wg.Wait()
		var s cacheaside.Stats
		for _, l := range fleet {
			counts := l.Stats()
			s.Loads += counts.Loads
			s.MemoryHits += counts.MemoryHits
			s.RedisHits += counts.RedisHits
			s.Waits += counts.Waits
			s.Unvalidated += counts.Unvalidated
			s.RedisErrors += counts.RedisErrors
		}
		t.Logf("%d accesses in %v: %d loads, %d hits in memory, %d rounds found in Redis, %d waited", len(keys),
			time.Since(began).Round(time.Millisecond), loads.Load(), s.MemoryHits, s.RedisHits, s.Waits)
		if loads.Load() != int64(distinct) || s.Loads != int64(distinct) || s.Unvalidated != 0 || s.RedisErrors != 0 {
			t.Errorf("%d loads of %d keys: %+v", loads.Load(), distinct, s)
		}
	}
	few := 20_000
	if raceEnabled { // make test also replays all of it without
		keys, few = keys[:3000], 1000
	}
	o := steady
	o.MemoryBytes = 0 // the default size
	t.Run("redis", func(t *testing.T) { replay(t, realBackend(t), o, keys) })
	t.Run("redis, no memory tier", func(t *testing.T) { replay(t, realBackend(t), steadyNoMemory, keys) })
	t.Run("embedded", func(t *testing.T) {
		m, b := embedded(t)
		// With the clock it looks through all keys at each command; nothing expires here.
		m.ClockTTL(false)
		replay(t, b, steady, keys[:few])
	})
}
