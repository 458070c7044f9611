package invalidation

import (
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const (
	timeout = 30 * time.Second
	bound   = 400 * time.Millisecond // short enough to wait for, in a bubble or where nothing need be trusted
	short   = 4 * time.Second        // likewise, where a busy machine must keep it
	long    = 6 * time.Minute        // longer than any wait for an event, so that no poll comes in between
)

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// backend is one kind of Redis that the channel has to work on.
type backend struct {
	t      *testing.T
	ctx    context.Context
	rdb    redis.UniversalClient
	bubble bool // time is made up: what takes none is at once
}

// onEach runs f on every kind of Redis. The embedded one runs in a bubble, so that waiting costs no
// time there.
func onEach(t *testing.T, f func(t *testing.T, b *backend)) {
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, rdb := testenv.Mini(t)
			b := newBackend(t, rdb)
			b.bubble = true
			f(t, b)
		})
	})
	t.Run("redis", func(t *testing.T) { f(t, newBackend(t, testenv.SharedRedis(t).Client(t))) })
	t.Run("cluster", func(t *testing.T) { f(t, newBackend(t, testenv.SharedCluster(t).Client(t))) })
	t.Run("sentinel", func(t *testing.T) { f(t, newBackend(t, testenv.SharedSentinel(t).Client(t))) })
	t.Run("serverless", func(t *testing.T) { f(t, newBackend(t, testenv.SharedServerless(t).Client(t))) })
}

func newBackend(t *testing.T, rdb redis.UniversalClient) *backend {
	return &backend{t: t, ctx: t.Context(), rdb: rdb}
}

// open makes a channel that the test closes, and counts what it does to a memory.
func (b *backend) open(bound time.Duration) (*Bus, *recorder) {
	b.t.Helper()
	m := &recorder{}
	return open(b.t, b.rdb, timeout, bound, m), m
}

// writer makes a channel without a memory.
func (b *backend) writer() *Bus {
	b.t.Helper()
	return open(b.t, b.rdb, timeout, bound, nil)
}

func open(t testing.TB, rdb redis.UniversalClient, timeout, bound time.Duration, m *recorder) *Bus {
	t.Helper()
	cn, err := conn.New(rdb, timeout)
	if err != nil {
		t.Fatal(err)
	}
	var memory Memory
	if m != nil {
		memory = m
	}
	c := New(cn, "test", bound, memory)
	t.Cleanup(func() {
		c.Close()
		cn.Close()
	})
	return c
}

// listen makes a channel that is subscribed, and whose memory is trusted in all ranges.
func (b *backend) listen(bound time.Duration) (*Bus, *recorder) {
	b.t.Helper()
	c, m := b.open(bound)
	c.Listen()
	b.trusted(c)
	return c, m
}

func (b *backend) trusted(c *Bus) {
	b.t.Helper()
	b.until("trusted", func() bool { s := c.Stats(); return s.Trusted == s.Ranges && s.Subscribed })
}

func (b *backend) until(step string, f func() bool) {
	b.t.Helper()
	testenv.Eventually(b.t, step, f)
}

func (b *backend) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// delete fails unless each key is deleted.
func (b *backend) delete(c *Bus, hashes ...uint64) {
	b.t.Helper()
	names := make([]string, len(hashes))
	for i, h := range hashes {
		names[i] = "key:" + decimal(h)
	}
	for _, err := range c.Delete(b.ctx, names, hashes) {
		b.check(err)
	}
}

func (b *backend) eachMaster(f func(ctx context.Context, c *redis.Client) error) {
	b.t.Helper()
	switch c := b.rdb.(type) {
	case *redis.ClusterClient:
		b.check(c.ForEachMaster(b.ctx, f))
	case *redis.Client:
		b.check(f(b.ctx, c))
	}
}

// flushScripts makes every server forget the scripts.
func (b *backend) flushScripts() {
	b.t.Helper()
	b.eachMaster(func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() })
}

// flush makes every server forget all.
func (b *backend) flush() {
	b.t.Helper()
	b.eachMaster(func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() })
}

// recorder is a memory that records its calls.
type recorder struct {
	voids   atomic.Int64
	mu      sync.Mutex
	forgot  []uint64
	cleared [conn.Ranges]int
	trust   [conn.Ranges]time.Time
	ended   [conn.Ranges]int // how often its trust was taken
}

func (r *recorder) Forget(stable uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgot = append(r.forgot, stable)
}

func (r *recorder) Clear(rng int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleared[rng]++
}

func (r *recorder) Void(rng int) {
	r.Clear(rng)
	r.voids.Add(1)
}

func (r *recorder) Trust(rng int, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trust[rng] = until; until.IsZero() {
		r.ended[rng]++
	}
}

func (r *recorder) has(stable uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.forgot, stable)
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.forgot)
}

// clears is how often all ranges together were cleared.
func (r *recorder) clears() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.cleared {
		n += k
	}
	return n
}

// untrusted is how often each range's trust was taken.
func (r *recorder) untrusted() [conn.Ranges]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// distrusted reports whether no range is trusted now.
func (r *recorder) distrusted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(r.trust[:], time.Now().Before)
}

// parseNumber returns the number in a field of a range's hash.
func (b *backend) parseNumber(c *Bus, rng int, field string) uint64 {
	b.t.Helper()
	digits, err := b.rdb.HGet(b.ctx, c.keys[rng], field).Result()
	if err == redis.Nil {
		return 0
	}
	b.check(err)
	n, err := strconv.ParseFloat(digits, 64)
	b.check(err)
	return uint64(min(n, math.MaxInt64))
}
