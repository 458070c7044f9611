package bench

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestRedisHit measures hits in Redis without a memory tier.
func TestRedisHit(t *testing.T) {
	keys := keys(size(20_000, 500))
	ctx := context.Background()
	var contenders []contender
	var fromMemory, peers []string
	loads := map[string]*atomic.Int64{}
	for _, p := range slices.Concat(entrants(t), Floors()) {
		if !p.Redis {
			continue
		}
		server := testenv.StartRedis(t) // one for each peer, so that no peer's data affects another
		loaded := new(atomic.Int64)
		c := open(t, p, Config{
			Redis: server.Addr, NoMemory: true, Patient: true, TTL: time.Hour,
			Load: func(_ context.Context, key string) (*Row, error) { loaded.Add(1); return rowOf(key), nil },
		})
		for range 2 { // some peers store in the background, and may drop values
			readEach(t, p, c, keys)
			time.Sleep(20 * time.Millisecond)
		}
		before := lookups(t, server)
		readEach(t, p, c, keys)
		if lookups(t, server)-before < len(keys)*9/10 {
			fromMemory = append(fromMemory, p.Name)
			continue
		}
		loaded.Store(0)
		loads[p.Name] = loaded
		if !p.Floor && p.Name != own {
			peers = append(peers, p.Name)
		}
		contenders = append(contenders, contender{p.Name, func(i int) error {
			_, err := c.Get(ctx, keys[i%len(keys)])
			return err
		}})
	}
	text := fmt.Sprintf("%s string keys, all in Redis, without a memory tier. Each hit decodes about 290 bytes of "+
		"JSON. A ratio compares the times per read, as the median of the ratios of all runs: below 1 is faster.",
		thousands(fmt.Sprint(len(keys))))
	if len(fromMemory) > 0 {
		text += " Left out, because they only have a memory tier: " + strings.Join(fromMemory, ", ") + "."
	}
	for _, goroutines := range hitGoroutines {
		t.Run(fmt.Sprint(goroutines), func(t *testing.T) {
			results := contest(t, size(9, 2), goroutines, size(200*time.Millisecond, 5*time.Millisecond), contenders)
			table := &Table{Section: 2, Title: fmt.Sprintf("Hits in Redis, %d goroutines", goroutines), Text: text,
				Head: []string{"", "us", "middle half", "of raw go-redis", "of raw AutoPipeline", "allocations"}}
			raw, auto, ours := find(results, "raw go-redis"), find(results, "raw AutoPipeline"), find(results, own)
			for _, r := range results {
				us := micro(r.ns)
				table.Row(r.name, median(us), spread(us), median(ratios(r.ns, raw.ns)), median(ratios(r.ns, auto.ns)),
					r.allocs)
			}
			publish(t, table)
			switch goroutines {
			case 1:
				bar(t, "1 goroutine, time relative to raw go-redis", median(ratios(ours.ns, raw.ns)), 1.1)
			case 128:
				bar(t, "128 goroutines, time relative to raw AutoPipeline", median(ratios(ours.ns, auto.ns)), 1/0.9)
				for _, name := range peers {
					bar(t, "128 goroutines, time relative to "+name,
						median(ratios(ours.ns, find(results, name).ns)), 0.5)
				}
			}
		})
	}
	for name, loaded := range loads {
		if n := loaded.Load(); n > 0 {
			t.Logf("%s has loaded %d rows that were in Redis", name, n)
			if name == own {
				t.Error("not all reads are hits")
			}
		}
	}
}

// readEach reads each key once on several goroutines.
func readEach(t testing.TB, p Peer, c Cache, keys []string) {
	t.Helper()
	var wg sync.WaitGroup
	for part := range slices.Chunk(keys, (len(keys)+15)/16) {
		wg.Go(func() {
			for _, key := range part {
				if r, err := c.Get(context.Background(), key); err != nil || r.Name != rowOf(key).Name {
					t.Errorf("%s: %v, or the row of another key", p.Name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// lookups returns the number of key lookups in Redis, by any command.
func lookups(t testing.TB, server *testenv.Redis) int {
	t.Helper()
	info, err := server.Client(t).Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keyspace(info)
}

var keyspaceStats = regexp.MustCompile(`keyspace_(?:hits|misses):(\d+)`)

func keyspace(info string) (n int) {
	for _, m := range keyspaceStats.FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[1])
		n += calls
	}
	return n
}

func micro(ns []float64) []float64 {
	us := make([]float64, len(ns))
	for i, v := range ns {
		us[i] = v / 1000
	}
	return us
}
