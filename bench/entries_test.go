package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() { testenv.RegisterChild("entries", keepEntries) }

// plainMap is the name of a contestant that is a map with the same rows.
const plainMap = "map[string]*Row"

// footprint is what a child reports.
type footprint struct {
	Fixed, Entry float64 // bytes of heap: the constant part, and the part of each entry
	// Share of the entries that a last round of reads has requested from Redis or loaded.
	Asked float64
}

// TestMemoryPerEntry measures what an entry costs in memory and in Redis.
func TestMemoryPerEntry(t *testing.T) {
	n := size(20_000, 2_000)
	key := keys(1)[0]
	text, err := json.Marshal(ownRow(key))
	if err != nil {
		t.Fatal(err)
	}
	raw := float64(len(key) + len(text))
	table := &Table{
		Section: 13, Title: "Memory per entry",
		Text: fmt.Sprintf("%d rows, each peer in a separate process. Bytes an entry: heap in use after a collection, "+
			"including the key and the row, which nothing else refers to. "+
			"Fixed: memory that does not grow with the entries, including connections. Asked: the share of reads "+
			"that left the process, after all rows had been read several times. In Redis: used_memory per row after "+
			"the process has ended, "+
			"less its value before, including the server's tracking of clients that cache the row (rueidis). Over "+
			"raw: the same less key and JSON (%.0f bytes). A peer's prefix of the key counts as its overhead. "+
			"FreeCache (jetcache-go) allocates its whole budget, here 64 MiB, at the start: entries only add their "+
			"index to the heap.", n, raw),
		Head: []string{"", "fixed, MB", "bytes an entry", "of the map's", "asked, %", "in Redis, bytes", "over raw"},
	}
	base := measureEntries(t, Peer{Name: plainMap}, n)
	table.Row(plainMap, base.Fixed/1e6, base.Entry, 1.0, "–", "–", "–")
	for _, p := range slices.Concat(entrants(t), Floors()) {
		server := testenv.SharedRedis(t)
		f := measureEntries(t, p, n)
		fixed, entry, share, asked := math.NaN(), math.NaN(), math.NaN(), math.NaN()
		if p.Memory {
			fixed, entry, share, asked = f.Fixed/1e6, f.Entry, f.Entry/base.Entry, f.Asked*100
		}
		inRedis := math.NaN()
		if p.Redis {
			inRedis = f.inRedis
			if have := int(server.Client(t).DBSize(t.Context()).Val()); have < n {
				t.Errorf("%s: %d keys in Redis, want %d", p.Name, have, n)
			}
		}
		table.Row(p.Name, fixed, entry, share, asked, inRedis, inRedis-raw)
	}
	publish(t, table)
}

type measured struct {
	footprint
	inRedis float64
}

// measureEntries fills a cache in a child.
func measureEntries(t *testing.T, p Peer, n int) measured {
	t.Helper()
	server := testenv.SharedRedis(t)
	admin := server.Client(t)
	before := usedMemory(t, admin)
	child := testenv.SpawnChild(t, "entries", "BENCH_PEER="+p.Name, "BENCH_REDIS="+server.Addr,
		fmt.Sprint("BENCH_N=", n))
	line, err := child.ReadLine(time.Minute)
	if err != nil {
		t.Fatal(p.Name, err)
	}
	var m measured
	if err := json.Unmarshal([]byte(line), &m.footprint); err != nil {
		t.Fatal(p.Name, line, err)
	}
	fmt.Fprintln(child.Stdin)
	if err := child.Wait(); err != nil {
		t.Fatal(p.Name, err)
	}
	time.Sleep(20 * time.Millisecond) // the server has noticed that its clients have disconnected
	m.inRedis = (usedMemory(t, admin) - before) / float64(n)
	return m
}

func usedMemory(t *testing.T, rdb *redis.Client) float64 {
	t.Helper()
	return infoNumber(t.Context(), rdb, "memory", "used_memory")
}

func infoNumber(ctx context.Context, rdb *redis.Client, section, name string) float64 {
	for line := range strings.Lines(rdb.Info(ctx, section).Val()) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			f, _ := strconv.ParseFloat(v, 64)
			return f
		}
	}
	return math.NaN()
}

// ownRow returns a row that shares its strings with no other row.
func ownRow(key string) *Row {
	return &Row{ID: 1, Name: "product " + key, Text: strings.Clone(text200), Price: 9.99}
}

// keepEntries runs in the child: it fills a cache, prints its size, and waits until the parent has
// read it.
func keepEntries() {
	n, _ := strconv.Atoi(os.Getenv("BENCH_N"))
	all := keys(n)
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("BENCH_REDIS")})
	var loads atomic.Int64
	start := float64(heapInUse())
	cache := openNamed(os.Getenv("BENCH_PEER"), func(_ context.Context, key string) (*Row, error) {
		loads.Add(1)
		return ownRow(key), nil
	})
	few := heapWith(ctx, cache, all[:n/10]) // includes all connections
	many := heapWith(ctx, cache, all)
	outside := func() float64 {
		return infoNumber(ctx, rdb, "stats", "total_commands_processed") + float64(loads.Load())
	}
	before := outside()
	readAll(ctx, cache, all)
	asked := max(0, outside()-before-1) / float64(n) // without the INFO itself
	f := footprint{Entry: (many - few) / float64(n-n/10), Asked: asked}
	f.Fixed = max(0, many-start-f.Entry*float64(n))
	runtime.KeepAlive(cache)
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	cache.Close()
	rdb.Close()
}

// openNamed opens the peer with the name, or a map.
func openNamed(name string, load func(context.Context, string) (*Row, error)) Cache {
	if name == plainMap {
		return &mapCache{rows: map[string]*Row{}, load: load}
	}
	for _, p := range slices.Concat(Peers(), Floors()) {
		if p.Name == name {
			c, err := p.Open(Config{Redis: os.Getenv("BENCH_REDIS"), Load: load, TTL: time.Hour, MemoryTTL: time.Hour,
				Patient: true})
			if err != nil {
				panic(err)
			}
			return c
		}
	}
	panic("no peer " + name)
}

// readAll reads each key on many goroutines. It passes a fresh string for each key.
func readAll(ctx context.Context, cache Cache, keys []string) {
	const readers = 32
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() {
			for i := r; i < len(keys); i += readers {
				if _, err := cache.Get(ctx, strings.Clone(keys[i])); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
}

// heapWith returns the heap after several reads of these keys, so that they are in memory.
func heapWith(ctx context.Context, cache Cache, keys []string) float64 {
	for range 4 { // some peers drop values that arrive in a burst
		readAll(ctx, cache, keys)
		time.Sleep(20 * time.Millisecond)
	}
	return float64(heapInUse())
}

// mapCache is a map with a lock.
type mapCache struct {
	mu   sync.Mutex
	rows map[string]*Row
	load func(context.Context, string) (*Row, error)
}

func (m *mapCache) Get(ctx context.Context, key string) (*Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rows[key]; r != nil {
		return r, nil
	}
	r, err := m.load(ctx, key)
	m.rows[key] = r
	return r, err
}

func (m *mapCache) Close() error { return nil }
