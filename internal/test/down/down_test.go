// Package down_test tests what a process serves from its memory while it cannot reach Redis.
package down_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const maxStaleness = 2 * time.Second

// cutter cuts a process off from Redis, while others reach it.
type cutter struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("cut off")

// client makes a client as rdb is, that can be cut off.
func (c *cutter) client(t *testing.T, rdb *redis.Client) *redis.Client {
	o := *rdb.Options()
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.cut {
			return nil, errCut
		}
		conn, err := dial(ctx, network, addr)
		c.conns = append(c.conns, conn)
		return conn, err
	}
	client := redis.NewClient(&o)
	t.Cleanup(func() { client.Close() })
	return client
}

func (c *cutter) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for _, conn := range c.conns {
			conn.Close()
		}
		c.conns = nil
	}
}

// table holds rows with versions.
type table struct {
	mu       sync.Mutex
	versions map[int]int
	loads    atomic.Int64
	begins   chan struct{} // if not nil, a load takes one when it has read
}

func (t *table) write(key int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.versions[key]++
}

func (t *table) load(_ context.Context, key int) (string, error) {
	t.loads.Add(1)
	t.mu.Lock()
	v, begins := t.versions[key], t.begins
	t.mu.Unlock()
	if begins != nil {
		<-begins
	}
	if v < 0 {
		return "", cacheaside.ErrNotFound
	}
	return fmt.Sprint(v), nil
}

type process struct {
	*cacheaside.Loader[int, string]
	cache *cacheaside.Cache
}

func start(
	t *testing.T, rdb redis.UniversalClient, d *table, o *cacheaside.Options, lo *cacheaside.LoaderOptions,
) process {
	t.Helper()
	c, err := cacheaside.New(rdb, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", d.load, lo)
	if err != nil {
		t.Fatal(err)
	}
	return process{l, c}
}

// want fails unless a read returns want, and takes this number of loads.
func (p process) want(t *testing.T, d *table, want string, loads int64, options ...cacheaside.ReadOption) {
	t.Helper()
	before := d.loads.Load()
	got, err := p.Get(t.Context(), 1, options...)
	if err != nil && !errors.Is(err, cacheaside.ErrNotFound) || got != want || d.loads.Load()-before != loads {
		t.Errorf("%q, %v, %d loads; want %q, %d loads", got, err, d.loads.Load()-before, want, loads)
	}
}

// inBubble runs f with a process that is cut off from Redis, which it has reached before if warm,
// and another one that is not.
func inBubble(
	t *testing.T, f func(t *testing.T, d *table, link *cutter, p, other process), warm bool, o *cacheaside.Options,
	lo *cacheaside.LoaderOptions,
) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		d, link := &table{versions: map[int]int{1: 1}}, &cutter{}
		other := start(t, rdb, d, o, lo)
		defer other.cache.Close()
		p := start(t, link.client(t, rdb), d, o, lo)
		defer p.cache.Close()
		if warm {
			p.Get(t.Context(), 100) // it makes the subscription
			time.Sleep(time.Second)
		}
		link.set(true)
		for range 5 { // until it is noticed
			p.Get(t.Context(), 101, cacheaside.Fresh) // it may still be loaded
		}
		f(t, d, link, p, other)
		link.set(false)
		p.cache.Close()
		time.Sleep(time.Minute) // go-redis is still trying to connect
	})
}

// While Redis is out of reach, a process loads a row at most once in each MaxStaleness. The same
// holds for a missing row.
func TestLoadsWhileDown(t *testing.T) {
	for _, warm := range []bool{true, false} {
		for _, version := range []int{1, -1} {
			t.Run(fmt.Sprint(warm, version), func(t *testing.T) {
				inBubble(t, func(t *testing.T, d *table, _ *cutter, p, _ process) {
					d.versions[1] = version
					loads, reads, before := d.loads.Load(), 0, p.cache.Stats()
					for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
						if got, err := p.Get(t.Context(), 1); got != "1" != (version < 0) ||
							err != nil != (version < 0) {
							t.Fatal(got, err)
						}
						if many, err := p.GetMany(t.Context(), []int{1}); err != nil ||
							len(many) == 0 != (version < 0) {
							t.Fatal(many, err)
						}
						reads += 2
					}
					loads = d.loads.Load() - loads
					t.Logf("%d loads of %d reads", loads, reads)
					if loads > 6 || loads < 5 {
						t.Errorf("%d loads in 10 s, with a MaxStaleness of %v", loads, maxStaleness)
					}
					if s := p.cache.Stats(); s.HitsWhileDown-before.HitsWhileDown != int64(reads)-loads ||
						s.MemoryHits-before.MemoryHits != int64(reads)-loads {
						t.Errorf("%+v", s)
					}
				}, warm, nil, nil)
			})
		}
	}
}

// Those who come while a row is loaded do not have it loaded again.
func TestCrowdWhileDown(t *testing.T) {
	inBubble(t, func(t *testing.T, d *table, _ *cutter, p, _ process) {
		d.mu.Lock()
		d.begins = make(chan struct{})
		d.mu.Unlock()
		loads := d.loads.Load()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if got, err := p.Get(t.Context(), 1); got != "1" || err != nil {
					t.Error(got, err)
				}
			})
			synctest.Wait() // the others come one after the other
		}
		close(d.begins)
		wg.Wait()
		if n := d.loads.Load() - loads; n != 1 {
			t.Errorf("%d loads", n)
		}
	}, true, nil, nil)
}

// It is served until MaxStaleness after its load began, not after it ended, and not a moment
// longer.
func TestBoundWhileDown(t *testing.T) {
	inBubble(t, func(t *testing.T, d *table, _ *cutter, p, other process) {
		d.mu.Lock()
		d.begins = make(chan struct{}, 1)
		d.mu.Unlock()
		began := time.Now()
		time.AfterFunc(maxStaleness/4, func() {
			d.write(1)
			if err := other.Invalidate(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
		time.AfterFunc(maxStaleness/2, func() { close(d.begins) })
		p.want(t, d, "1", 1) // it has read before the write
		time.Sleep(time.Until(began.Add(maxStaleness - time.Nanosecond)))
		p.want(t, d, "1", 0)
		time.Sleep(time.Nanosecond)
		p.want(t, d, "2", 1)
	}, true, nil, nil)
}

// While Redis is down, an invalidation of a key or of all keys takes effect in its own process. It
// also voids a load in progress.
func TestOwnInvalidateWhileDown(t *testing.T) {
	for _, warm := range []bool{true, false} {
		for name, invalidate := range map[string]func(context.Context, process) error{
			"Invalidate":         func(ctx context.Context, p process) error { return p.Invalidate(ctx, 1) },
			"InvalidateAll":      func(ctx context.Context, p process) error { return p.InvalidateAll(ctx) },
			"InvalidateKeys":     func(ctx context.Context, p process) error { return p.cache.InvalidateKeys(ctx, p.Key(1)) },
			"InvalidateKeys all": func(ctx context.Context, p process) error { return p.cache.InvalidateKeys(ctx, p.AllKeys()) },
			"Expire":             func(ctx context.Context, p process) error { return p.Expire(ctx, 1) },
		} {
			t.Run(fmt.Sprint(name, warm), func(t *testing.T) {
				inBubble(t, func(t *testing.T, d *table, _ *cutter, p, _ process) {
					p.want(t, d, "1", 1)
					p.want(t, d, "1", 0)
					d.write(1)
					if err := invalidate(t.Context(), p); err == nil {
						t.Error("it has reached Redis")
					}
					d.mu.Lock()
					d.begins = make(chan struct{})
					d.mu.Unlock()
					var wg sync.WaitGroup
					wg.Go(func() { p.want(t, d, "2", 1) })
					synctest.Wait()
					d.write(1)
					if err := invalidate(t.Context(), p); err == nil {
						t.Error("it has reached Redis")
					}
					close(d.begins)
					wg.Wait()
					p.want(t, d, "3", 1)
					p.want(t, d, "3", 0)
				}, warm, nil, nil)
			})
		}
	}
}

// When Redis is back, nothing from before is served: the process has missed the invalidations of
// others.
func TestRedisIsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, d *table, link *cutter, p, other process) {
		p.want(t, d, "1", 1)
		p.want(t, d, "1", 0)
		d.write(1)
		if err := other.Invalidate(t.Context(), 1); err != nil {
			t.Error(err)
		}
		link.set(false)
		deadline := time.Now().Add(maxStaleness)
		for p.cache.Stats().Bus.Trusted == 0 {
			if time.Now().After(deadline.Add(time.Minute)) {
				t.Fatal("it is not trusted again")
			}
			time.Sleep(time.Millisecond)
		}
		if got, err := p.Get(t.Context(), 1); got != "2" || err != nil {
			t.Error(got, err)
		}
	}, true, &cacheaside.Options{MaxStaleness: time.Minute}, nil)
}

// Not served from there: what is read with Fresh, under Bypass, or where only Redis knows whether
// the key is on hold.
func TestNotKeptWhileDown(t *testing.T) {
	inBubble(t, func(t *testing.T, d *table, _ *cutter, p, _ process) {
		p.want(t, d, "1", 1)
		p.want(t, d, "1", 1, cacheaside.Fresh)
		p.want(t, d, "1", 1, cacheaside.Fresh)
		p.want(t, d, "1", 0)
		p.Bypass(true)
		p.want(t, d, "1", 1)
		p.want(t, d, "1", 1)
		p.Bypass(false)
	}, true, nil, nil)
	for _, o := range []cacheaside.Options{{StrictWrites: true}, {ReplicaLag: time.Second}, {MemoryBytes: -1}} {
		inBubble(t, func(t *testing.T, d *table, _ *cutter, p, _ process) {
			p.want(t, d, "1", 1)
			p.want(t, d, "1", 1)
		}, true, &o, nil)
	}
	inBubble(t, func(t *testing.T, d *table, _ *cutter, p, _ process) {
		p.want(t, d, "1", 1)
		time.Sleep(100 * time.Millisecond)
		p.want(t, d, "1", 1)
	}, true, nil, &cacheaside.LoaderOptions{MemoryTTL: 100 * time.Millisecond})
}
