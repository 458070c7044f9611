package promises

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// gather makes Redis gather announcements for some time, of less than a second, before it delivers
// them.
func (b backend) gather(t *testing.T, some time.Duration) {
	t.Helper()
	now, err := b.admin.Time(t.Context()).Result()
	for rng := 0; rng < conn.Ranges && err == nil; rng++ {
		err = b.admin.HSet(t.Context(), invalidation.Numbers("cacheaside", rng), ":due",
			strconv.FormatInt(now.Add(some).UnixMicro(), 10)).Err()
	}
	if err != nil {
		t.Error(err)
	}
}

// A read with After observes the invalidations of its token before this process has received them.
// After that, memory serves the read.
func TestAfter(t *testing.T) {
	for name, invalidate := range map[string]func(ctx context.Context, p process) error{
		"keys":   func(ctx context.Context, p process) error { return p.Invalidate(ctx, 1, 2) },
		"Expire": func(ctx context.Context, p process) error { return p.Expire(ctx, 1, 2) },
		"group":  func(ctx context.Context, p process) error { return p.InvalidateGroup(ctx, "red") },
		"all":    func(ctx context.Context, p process) error { return p.InvalidateAll(ctx) },
		"of Cache": func(ctx context.Context, p process) error {
			return p.cache.InvalidateKeys(ctx, p.Key(1), p.Key(2))
		},
		"two calls": func(ctx context.Context, p process) error {
			return errors.Join(p.Invalidate(ctx, 2), p.Invalidate(ctx, 1))
		},
	} {
		servers := each
		if name == "keys" {
			servers = everywhere
		}
		t.Run(name, func(t *testing.T) {
			servers(t, func(t *testing.T, b backend) {
				flushAll(t, b)
				d := newTable(map[int]string{1: "red old", 2: "red old"})
				options := byParityAndColor()
				options.StaleFor = -1 // Expire makes no stale value visible
				p, q := start(t, b, d, patient, options), start(t, b, d, patient, options)
				p.remembers(t, 1, "red old")
				p.remembers(t, 2, "red old")
				q.want(t, 1, "red old", nil)
				d.write(1, "red new")
				d.write(2, "red new")
				b.gather(t, 900*time.Millisecond)
				ctx, written := cacheaside.Collect(t.Context())
				if err := invalidate(ctx, q); err != nil {
					t.Fatal(err)
				}
				after := cacheaside.After(written())
				if got, err := p.Get(t.Context(), 1, after); got != "red new" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
				if got, err := p.GetMany(t.Context(), []int{2}, after); got[2] != "red new" || err != nil {
					t.Errorf("%v, %v", got, err)
				}
				waitFor(t, func() bool {
					hits := p.Stats().MemoryHits
					if got, err := p.Get(t.Context(), 1, after); got != "red new" || err != nil {
						t.Fatalf("%q, %v", got, err)
					}
					return p.Stats().MemoryHits == hits+1
				})
			})
		})
	}
}

// A read with After observes the invalidation of all keys of a loader, also if this process has not
// received its announcement. A process without a memory tier receives none, and this one does not
// poll in time.
func TestAfterInvalidateAll(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newTable(map[int]string{1: "old"})
		o := patient
		o.MemoryBytes, o.MaxStaleness = -1, time.Minute
		p, q := start(t, b, d, o, nil), start(t, b, d, patient, nil)
		p.want(t, 1, "old", nil)
		d.write(1, "new")
		ctx, written := cacheaside.Collect(t.Context())
		if err := errors.Join(q.InvalidateAll(ctx), q.Invalidate(ctx, 2)); err != nil {
			t.Fatal(err)
		}
		got, err := p.Get(t.Context(), 1, cacheaside.After("of another cache"), cacheaside.After(written()))
		if got != "new" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A Token that is empty changes nothing. One that this cache cannot know makes a read Fresh.
func TestTokensFromElsewhere(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, patient, nil)
	p.remembers(t, 1, "one")
	another := patient
	another.Prefix = "another"
	ctx, of := cacheaside.Collect(t.Context())
	if err := start(t, b, d, another, nil).Invalidate(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token cacheaside.Token
		hits  int64
	}{
		"empty":     {"", 1},
		"malformed": {"?", 0},
		"cut":       {of()[:len(of())-3], 0},
		"long":      {cacheaside.Token(strings.Repeat("A", 10_000)), 0},
		"another":   {of(), 0},
	} {
		before := p.Stats().MemoryHits
		if got, err := p.Get(t.Context(), 1, cacheaside.After(c.token)); got != "one" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if hits := p.Stats().MemoryHits - before; hits != c.hits {
			t.Errorf("%s: %d hits in memory, want %d", name, hits, c.hits)
		}
	}
}

// In a cache without Redis a token changes nothing, also if a client has made it up. Otherwise each
// of its reads would load.
func TestTokensWithoutRedis(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := newTable(map[int]string{1: "one"})
	l, err := cacheaside.NewLoader(c, "row", d.load, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, token := cacheaside.Collect(t.Context())
	if err := l.Invalidate(ctx, 1); err != nil || token() != "" {
		t.Fatalf("%q, %v", token(), err)
	}
	for range 3 {
		got, err := l.GetMany(t.Context(), []int{1}, cacheaside.After("made up"))
		if got[1] != "one" || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		process{l, c}.settle()
	}
	if n := d.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
}

// Four processes write rows, and read rows with the tokens of the others' writes, while connections
// are cut and announcements are late. No read returns a row from before its token.
func TestTokensUnderFaults(t *testing.T) {
	const processes, rows, writes = 4, 4, 50
	server, b := testenv.SharedRedis(t), plainBackend(t)
	flushAll(t, b)
	d := newTable(map[int]string{})
	type written struct {
		version int
		token   cacheaside.Token
	}
	var newest [rows]atomic.Pointer[written]
	var fleet []process
	var proxies []*testenv.Proxy
	o := cacheaside.Options{RedisTimeout: 200 * time.Millisecond}
	for range processes {
		proxy := testenv.NewProxy(t, server.Addr)
		rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
		t.Cleanup(func() { rdb.Close() })
		c, err := newCache(rdb, &o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := cacheaside.NewLoader(c, "row", d.load, nil)
		if err != nil {
			t.Fatal(err)
		}
		fleet, proxies = append(fleet, process{Loader: l, cache: c}), append(proxies, proxy)
	}
	var writers, others sync.WaitGroup
	ended := make(chan struct{})
	for row := range rows {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(row)))
			for version := 1; version <= writes; version++ {
				d.write(row, strconv.Itoa(version))
				ctx, token := cacheaside.Collect(t.Context())
				for fleet[r.IntN(processes)].Invalidate(ctx, row) != nil {
					time.Sleep(time.Millisecond)
				}
				newest[row].Store(&written{version, token()})
				time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
			}
		})
	}
	var hits, reads atomic.Int64
	for n, p := range fleet {
		others.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(n)))
			for row := 0; ; row = (row + 1) % rows {
				select {
				case <-ended:
					return
				default:
				}
				after := newest[row].Load()
				if after == nil {
					time.Sleep(time.Millisecond)
					continue
				}
				if r.IntN(2) == 0 { // some time later
					time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
				}
				before := p.Stats().MemoryHits
				got, err := p.Get(t.Context(), row, cacheaside.After(after.token))
				if version, _ := strconv.Atoi(got); err == nil && version < after.version {
					t.Errorf("process %d: row %d has version %d after version %d was invalidated", n, row, version,
						after.version)
				}
				reads.Add(1)
				hits.Add(p.Stats().MemoryHits - before)
			}
		})
	}
	others.Go(func() {
		r := rand.New(rand.NewPCG(3, 0))
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Duration(r.IntN(100)) * time.Millisecond):
			}
			b.gather(t, 100*time.Millisecond)
			proxy := proxies[r.IntN(processes)]
			proxy.Cut()
			time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
			proxy.Restore()
		}
	})
	writers.Wait()
	close(ended)
	others.Wait()
	t.Logf("%d reads, %d of them from memory", reads.Load(), hits.Load())
}
