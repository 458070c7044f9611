package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// database is the source of the loads. It counts them. Rows can be missing or change.
type database struct {
	mu    sync.Mutex
	rows  map[string]*Row
	loads map[string]int
}

func newDatabase(keys ...string) *database {
	d := &database{rows: map[string]*Row{}, loads: map[string]int{}}
	for _, key := range keys {
		d.rows[key] = rowOf(key)
	}
	return d
}

func (d *database) load(_ context.Context, key string) (*Row, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loads[key]++
	if r := d.rows[key]; r != nil {
		c := *r
		return &c, nil
	}
	return nil, ErrNotFound
}

func (d *database) loadMany(ctx context.Context, keys []string) (map[string]*Row, error) {
	found := map[string]*Row{}
	for _, key := range keys {
		if r, err := d.load(ctx, key); err == nil {
			found[key] = r
		}
	}
	return found, nil
}

func (d *database) set(key string, r *Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows[key] = r
}

func (d *database) count(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loads[key]
}

// settle waits for writes to Redis and memory that some peers make after they have returned the
// row. They make them on goroutines of this process, with one or two round trips. While this
// function makes ten sequential round trips, those goroutines have time to finish, on a machine
// under any load.
func settle(t *testing.T, addr string) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	for range 10 {
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// eachPeer runs a test for each library and floor on an empty Redis, and without memory too for
// those with two tiers.
func eachPeer(t *testing.T, test func(t *testing.T, p Peer, c Config)) {
	for _, p := range slices.Concat(Peers(), Floors()) {
		modes := []bool{false}
		if p.Memory && p.Redis {
			modes = []bool{false, true}
		}
		for _, noMemory := range modes {
			name := p.Name
			if noMemory {
				name += ", no memory"
			}
			t.Run(name, func(t *testing.T) {
				c := Config{Redis: testenv.SharedRedis(t).Addr, TTL: time.Minute, NullTTL: 30 * time.Second,
					MemoryTTL: 30 * time.Second, NoMemory: noMemory, Patient: true}
				test(t, p, c)
			})
		}
	}
}

// A row is loaded once and then comes complete from the cache.
func TestPeersLoadOnce(t *testing.T) {
	eachPeer(t, func(t *testing.T, p Peer, c Config) {
		db := newDatabase("a")
		c.Load = db.load
		cache := open(t, p, c)
		for range 3 {
			r, err := cache.Get(t.Context(), "a")
			if err != nil || *r != *rowOf("a") {
				t.Fatalf("got %v, %v", r, err)
			}
			settle(t, c.Redis)
		}
		if n := db.count("a"); n != 1 {
			t.Errorf("%d loads", n)
		}
		if p.Redis { // another process finds it in Redis
			other := open(t, p, c)
			if r, err := other.Get(t.Context(), "a"); err != nil || *r != *rowOf("a") || db.count("a") != 1 {
				t.Errorf("another process: got %v, %v; %d loads", r, err, db.count("a"))
			}
			settle(t, c.Redis)
		}
	})
}

// A missing row is ErrNotFound each time. Peers that cache nulls load it once.
func TestPeersMissingRow(t *testing.T) {
	eachPeer(t, func(t *testing.T, p Peer, c Config) {
		db := newDatabase()
		c.Load = db.load
		cache := open(t, p, c)
		for range 3 {
			if r, err := cache.Get(t.Context(), "none"); !errors.Is(err, ErrNotFound) {
				t.Fatalf("got %v, %v", r, err)
			}
			settle(t, c.Redis)
		}
		want := 3
		if p.Nulls {
			want = 1
		}
		if n := db.count("none"); n != want {
			t.Errorf("%d loads, want %d", n, want)
		}
	})
}

// A read after Invalidate loads the new row.
func TestPeersInvalidate(t *testing.T) {
	eachPeer(t, func(t *testing.T, p Peer, c Config) {
		db := newDatabase("a")
		c.Load = db.load
		cache := open(t, p, c)
		in, ok := cache.(Invalidator)
		if !ok && !p.Floor {
			t.Fatal("the peer has no Invalidate")
		}
		if !ok {
			return
		}
		for i := range 3 {
			if _, err := cache.Get(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			settle(t, c.Redis)
			fresh := &Row{ID: int64(i), Text: "new"}
			db.set("a", fresh)
			if err := in.Invalidate(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if p.Later {
				settle(t, c.Redis)
			}
			if r, err := cache.Get(t.Context(), "a"); err != nil || *r != *fresh {
				t.Errorf("got %v, %v", r, err)
			}
			settle(t, c.Redis)
		}
	})
}

// If the peer notifies other processes, one that had the row in memory loads the new row after
// Invalidate in another process. Otherwise it serves the old one.
func TestPeersNotifyOtherProcesses(t *testing.T) {
	eachPeer(t, func(t *testing.T, p Peer, c Config) {
		if !p.Redis || p.Floor {
			return
		}
		db := newDatabase("a")
		c.Load = db.load
		one, two := open(t, p, c), open(t, p, c)
		for _, cache := range []Cache{one, two, one, two} {
			if _, err := cache.Get(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			settle(t, c.Redis)
		}
		db.set("a", &Row{Text: "new"})
		if err := one.(Invalidator).Invalidate(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		want := "new"
		if p.Memory && !c.NoMemory && !p.Notifies && !p.Unpromoted {
			want = text200
		}
		var r *Row
		for range 100 { // a message may take a while
			var err error
			if r, err = two.Get(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if r.Text == want {
				break
			}
			settle(t, c.Redis)
		}
		if r.Text != want {
			t.Errorf("the other process has %q", r.Text)
		}
	})
}

// A batch is complete if half of it is cached and one row is missing.
func TestPeersBatch(t *testing.T) {
	eachPeer(t, func(t *testing.T, p Peer, c Config) {
		all := keys(11)
		db := newDatabase(all[:10]...)
		for _, batchLoad := range []bool{false, true} {
			c.Load = db.load
			if batchLoad {
				c.LoadMany = db.loadMany
				c.Redis = testenv.SharedRedis(t).Addr // an empty server
			}
			cache := open(t, p, c)
			batch, ok := cache.(Batcher)
			if !ok {
				return
			}
			clear(db.loads)
			for _, key := range all[:5] {
				if _, err := cache.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			settle(t, c.Redis)
			for range 2 {
				found, err := batch.GetMany(t.Context(), all)
				if err != nil || len(found) != 10 {
					t.Fatalf("%d rows, %v", len(found), err)
				}
				for _, key := range all[:10] {
					if found[key] == nil || *found[key] != *rowOf(key) {
						t.Errorf("%s: %v", key, found[key])
					}
					if n := db.count(key); n != 1 {
						t.Errorf("%s: %d loads", key, n)
					}
				}
				settle(t, c.Redis)
			}
			want := 2
			if p.Nulls {
				want = 1
			}
			if n := db.count(all[10]); n != want {
				t.Errorf("the row that does not exist: %d loads, want %d", n, want)
			}
		}
	})
}

// A row gets the requested TTL in Redis, with a tolerance of a tenth. The TTL is twice as long
// where the peer serves a row while it reloads it. rockscache subtracts its Delay.
func TestPeersTTL(t *testing.T) {
	eachPeer(t, func(t *testing.T, p Peer, c Config) {
		if !p.Redis || p.Floor {
			return
		}
		db := newDatabase("some-key")
		c.Load, c.TTL, c.MemoryTTL = db.load, 8*time.Second, 4*time.Second
		cache := open(t, p, c)
		began := time.Now()
		if _, err := cache.Get(t.Context(), "some-key"); err != nil {
			t.Fatal(err)
		}
		settle(t, c.Redis)
		rdb := newClient(c)
		defer rdb.Close()
		names := rdb.Keys(t.Context(), "*some-key*").Val()
		if len(names) != 1 {
			t.Fatalf("%d keys", len(names))
		}
		most := c.TTL*11/10 + time.Second // some round up
		if p.Stale {
			most += c.TTL
		}
		left := rdb.PTTL(t.Context(), names[0]).Val()
		if left > most || left+time.Since(began) < c.TTL*6/10 {
			t.Errorf("a row is kept for %v, want %v", left, c.TTL)
		}
	})
}

// Close ends the goroutines that Open started, except those in leaks_test.go.
func TestPeersClose(t *testing.T) {
	eachPeer(t, func(t *testing.T, p Peer, c Config) {
		before := goleak.IgnoreCurrent()
		db := newDatabase("a", "b")
		c.Load = db.load
		cache, err := p.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b", "none", "a"} {
			if _, err := cache.Get(t.Context(), key); err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
		}
		if err := cache.Close(); err != nil {
			t.Fatal(err)
		}
		if err := goleak.Find(append([]goleak.Option{before}, leftBehind...)...); err != nil {
			t.Error(err)
		}
	})
}

func TestPeersHaveUniqueNames(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range slices.Concat(Peers(), Floors()) {
		if seen[p.Name] || p.Name == "" || p.Module == "" || p.Settings == "" || p.Open == nil {
			t.Errorf("%q: duplicate name or missing field", p.Name)
		}
		seen[p.Name] = true
	}
}
