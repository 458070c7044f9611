//go:build accept

package promises

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
)

// TestFleetReplaysATrace lets 1,000 processes together replay the reads of a web shop's ORM, each
// by a random process. It shows how many reads go to Redis and to the database if memory keeps
// copies for a tenth of the TTL, as for one of ten minutes, and if it keeps them as long as their
// entries.
func TestFleetReplaysATrace(t *testing.T) {
	const (
		processes = 1000
		perSecond = 1000
		ttl       = 100 * time.Second
		accesses  = 200_000 // within two TTLs
	)
	keys, _ := readTrace(t, "../../../testdata/orm-busy-600k.trace.gz")
	keys = keys[:accesses]
	hits := map[string]float64{}
	for _, c := range []struct {
		name      string
		memoryTTL time.Duration
	}{{"a tenth of the TTL", ttl / 10}, {"as long as the entry", 0}} {
		memoryTTL := c.memoryTTL
		synctest.Test(t, func(t *testing.T) {
			m, b := embedded(t)
			m.ClockTTL(false) // it looks through all keys at each command: see FastForward below
			var loads atomic.Int64
			o := cacheaside.Options{MaxStaleness: time.Minute, MemoryBytes: 1 << 20, RedisTimeout: 10 * time.Second,
				Logger: slog.New(slog.DiscardHandler)}
			fleet := make([]*cacheaside.Loader[int, int], processes)
			for i := range fleet {
				c, err := cacheaside.New(b.client(t), &o)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				fleet[i], err = cacheaside.NewLoader(c, "object", func(_ context.Context, key int) (int, error) {
					loads.Add(1)
					time.Sleep(5 * time.Millisecond)
					return key, nil
				}, &cacheaside.LoaderOptions{MemoryTTL: memoryTTL, TTL: ttl})
				if err != nil {
					t.Fatal(err)
				}
				hear(t, fleet[i])
			}
			draw := rand.New(rand.NewPCG(1, 2))
			for i, key := range keys {
				if _, err := fleet[draw.IntN(processes)].Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				if i%perSecond == perSecond-1 {
					time.Sleep(time.Second)
					m.FastForward(time.Second)
				}
			}
			var s cacheaside.Stats
			for _, l := range fleet {
				counts := l.Stats()
				s.Gets += counts.Gets
				s.MemoryHits += counts.MemoryHits
				s.RedisHits += counts.RedisHits
			}
			hits[c.name] = float64(s.MemoryHits) / float64(s.Gets)
			t.Logf("MemoryTTL %s: %d reads, %d hits in memory (%.1f %%), %d hits in Redis, %d loads", c.name,
				s.Gets, s.MemoryHits, 100*hits[c.name], s.RedisHits, loads.Load())
		})
	}
	if hits["as long as the entry"] <= hits["a tenth of the TTL"] {
		t.Error("copies that live longer have not saved a read of Redis")
	}
}
