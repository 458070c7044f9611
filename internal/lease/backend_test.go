package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Tests use lives that do not end while they run, unless they wait for the end.
const (
	long  = time.Minute
	short = 60 * time.Millisecond
)

// backend is one kind of Redis that the protocol has to hold on.
type backend struct {
	t     *testing.T
	ctx   context.Context
	rdb   redis.UniversalClient
	store *Store
}

// onEach runs f on every kind of Redis. The embedded one runs in a bubble, so that waiting costs no
// time there.
func onEach(t *testing.T, f func(t *testing.T, b *backend)) {
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, rdb := testenv.Mini(t)
			f(t, newBackend(t, rdb))
		})
	})
	t.Run("redis", func(t *testing.T) { f(t, newBackend(t, testenv.SharedRedis(t).Client(t))) })
	t.Run("valkey", func(t *testing.T) { f(t, newBackend(t, testenv.SharedValkey(t).Client(t))) })
	t.Run("cluster", func(t *testing.T) { f(t, newBackend(t, testenv.SharedCluster(t).Client(t))) })
	t.Run("sentinel", func(t *testing.T) { f(t, newBackend(t, testenv.SharedSentinel(t).Client(t))) })
	t.Run("serverless", func(t *testing.T) { f(t, newBackend(t, testenv.SharedServerless(t).Client(t))) })
}

func newBackend(t *testing.T, rdb redis.UniversalClient) *backend {
	t.Helper()
	return &backend{t: t, ctx: t.Context(), rdb: rdb, store: open(t, rdb, 30*time.Second)}
}

// open runs the protocol by rdb.
func open(t *testing.T, rdb redis.UniversalClient, timeout time.Duration) *Store {
	t.Helper()
	c, err := conn.New(rdb, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return NewStore(c, timeout)
}

func (b *backend) attempt(key string) single { return b.store.Attempt(key, long) }

// put stores an entry under key, for life.
func (b *backend) put(key string, e Entry, life time.Duration) {
	b.t.Helper()
	a := b.attempt(key)
	b.take(a, Mine)
	b.fill(a, e, life, true)
}

func (b *backend) read(a single, kind Kind) State {
	b.t.Helper()
	s, err := a.Read(b.ctx)
	return wantKind(b.t, "read", s, err, kind)
}

func (b *backend) take(a single, kind Kind) State {
	b.t.Helper()
	s, err := a.Take(b.ctx, nil)
	return wantKind(b.t, "take", s, err, kind)
}

func (b *backend) claim(a single, kind Kind) State {
	b.t.Helper()
	s, err := a.Claim(b.ctx)
	return wantKind(b.t, "claim", s, err, kind)
}

func wantKind(t *testing.T, step string, s State, err error, kind Kind) State {
	t.Helper()
	if err != nil || s.Kind != kind {
		t.Fatalf("%s: kind %d, %v, want kind %d", step, s.Kind, err, kind)
	}
	return s
}

func (b *backend) fill(a single, e Entry, life time.Duration, want bool) {
	b.t.Helper()
	if stored, err := a.Fill(b.ctx, e, life); err != nil || stored != want {
		b.t.Fatalf("fill: %v, %v, want %v", stored, err, want)
	}
}

func (b *backend) renew(a single, want bool) {
	b.t.Helper()
	if held, err := a.Renewal().Renew(b.ctx); err != nil || held != want {
		b.t.Fatalf("renew: %v, %v, want %v", held, err, want)
	}
}

func (b *backend) fail(a single, errorTTL time.Duration) {
	b.t.Helper()
	b.check(a.Fail(b.ctx, errorTTL))
}

func (b *backend) unstorable(a single, reason Reason, life time.Duration) {
	b.t.Helper()
	b.check(a.EndUnstorable(b.ctx, reason, life))
}

func (b *backend) release(a single) {
	b.t.Helper()
	b.check(a.Release(b.ctx))
}

func (b *backend) delete(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		b.check(b.rdb.Del(b.ctx, key).Err())
	}
}

func (b *backend) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// payload fails unless key holds an entry with this payload.
func (b *backend) payload(key, want string) State {
	b.t.Helper()
	s := b.read(b.attempt(key), Stored)
	if string(s.Entry.Payload) != want {
		b.t.Fatalf("the entry is %q, want %q", s.Entry.Payload, want)
	}
	return s
}

// life fails unless key lives for about want, or less by what the test may have taken.
func (b *backend) life(key string, want time.Duration) {
	b.t.Helper()
	if d := b.rdb.PTTL(b.ctx, key).Val(); d > want || d < want-10*time.Second || d <= 0 {
		b.t.Fatalf("the key lives for %v, want %v", d, want)
	}
}

// gone waits until Redis has let key expire.
func (b *backend) gone(key string) {
	b.t.Helper()
	b.until(func() bool { return b.rdb.Exists(b.ctx, key).Val() == 0 })
}

// claimEnd is when the claim of an entry ends, by Redis' clock.
func (b *backend) claimEnd(key string) time.Time {
	b.t.Helper()
	raw, err := b.rdb.Get(b.ctx, key).Bytes()
	b.check(err)
	e, now := Decode(raw).Entry, b.rdb.Time(b.ctx).Val()
	if !e.Claimed {
		b.t.Fatal("it is not claimed")
	}
	return time.UnixMilli(now.UnixMilli() + int64(int32(e.ClaimEnds-uint32(now.UnixMilli()))))
}

// over waits until end has passed on Redis' clock.
func (b *backend) over(end time.Time) {
	b.t.Helper()
	b.until(func() bool { return b.rdb.Time(b.ctx).Val().After(end.Add(time.Millisecond)) })
}

func (b *backend) until(f func() bool) {
	b.t.Helper()
	testenv.Eventually(b.t, "what the test awaits", f)
}

// flushScripts makes every server forget the scripts.
func (b *backend) flushScripts() {
	b.t.Helper()
	if c, ok := b.rdb.(*redis.ClusterClient); ok {
		b.check(c.ForEachMaster(b.ctx, func(ctx context.Context, c *redis.Client) error {
			return c.ScriptFlush(ctx).Err()
		}))
		return
	}
	b.check(b.rdb.ScriptFlush(b.ctx).Err())
}
