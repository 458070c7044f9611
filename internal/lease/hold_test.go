package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// holding is a backend whose keys can be on hold.
func holding(t *testing.T, f func(t *testing.T, b *backend)) {
	onEach(t, func(t *testing.T, b *backend) {
		b.store.Hold(long)
		f(t, b)
	})
}

func (b *backend) hold(key string, d time.Duration) {
	b.t.Helper()
	b.check(b.rdb.Set(b.ctx, keys.Hold(key), "", d).Err())
}

func TestNoLeaseIsGivenOnHold(t *testing.T) {
	holding(t, func(t *testing.T, b *backend) {
		b.hold("{k}", long)
		a := b.attempt("{k}")
		b.take(a, Held)
		if a.Owns() || a.Owes() {
			t.Error("the attempt holds something")
		}
		b.read(a, Absent)
		b.take(b.attempt("{other}"), Mine)

		b.check(b.rdb.Set(b.ctx, "{k}", "?", 0).Err())
		s, err := a.Take(b.ctx, []byte("?"))
		wantKind(t, "take", s, err, Held)
		b.take(a, Unknown) // the present contents are returned first
		b.delete("{k}")

		b.hold("{k}", 30*time.Millisecond)
		b.gone(keys.Hold("{k}"))
		b.take(a, Mine)
		b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
		b.hold("{k}", long)
		b.take(b.attempt("{k}"), Stored)
	})
}

func TestNoClaimIsGivenOnHold(t *testing.T) {
	holding(t, func(t *testing.T, b *backend) {
		b.hold("{absent}", long)
		b.claim(b.attempt("{absent}"), Held)
		b.read(b.attempt("{absent}"), Absent)

		b.put("{k}", Entry{Codec: 4, Payload: []byte("v")}, long)
		b.hold("{k}", long)
		b.claim(b.attempt("{k}"), Held)
		if s := b.payload("{k}", "v"); s.Entry.Claimed {
			t.Error("the entry is claimed")
		}
		b.delete(keys.Hold("{k}"))
		b.claim(b.attempt("{k}"), Mine)
	})
}

// A generation puts all keys of its loader on hold, by Redis' clock.
func TestYoungGenerationIsAHold(t *testing.T) {
	holding(t, func(t *testing.T, b *backend) {
		now := b.rdb.Time(b.ctx).Val()
		for _, c := range []struct {
			raised time.Time
			want   Kind
		}{{now.Add(-time.Second), Held}, {now.Add(time.Second), Held}, {now.Add(-long - time.Second), Mine}} {
			a := b.attempt("{k}")
			a.Young = uint64(c.raised.UnixMicro())
			b.take(a, c.want)
			b.release(a)
			b.claim(a, c.want)
			b.release(a)
		}
	})
}

// Where no lag is set nothing is asked.
func TestHoldsAreReadOnlyIfThereAreSome(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.hold("{k}", long)
		a := b.attempt("{k}")
		a.Young = uint64(time.Now().UnixMicro())
		b.take(a, Mine)
	})
}

// A writer's hold.

const mine, theirs = "my token....", "their token."

// enter has token hold key for d, as package channel does.
func (b *backend) enter(key, token string, d time.Duration) {
	b.t.Helper()
	ends := b.rdb.Time(b.ctx).Val().Add(d)
	b.check(b.rdb.ZAdd(b.ctx, keys.Hold(key), redis.Z{Member: token, Score: float64(ends.UnixMilli())}).Err())
	b.check(b.rdb.PExpire(b.ctx, keys.Hold(key), long).Err())
}

func (b *backend) mark(key, token string, life time.Duration) {
	b.t.Helper()
	cmd := Mark(token, life)(b.ctx, key)
	b.rdb.Process(b.ctx, cmd)
	b.check(cmd.Err())
}

func (b *backend) exchange(key string, want bool) {
	b.t.Helper()
	if stored, err := b.store.Exchange(b.ctx, key, mine, Entry{Codec: 4, Payload: []byte("written")},
		long); err != nil || stored != want {
		b.t.Fatalf("exchange: %v, %v, want %v", stored, err, want)
	}
}

// A mark voids leases under way, and shows every process that reads the key that it is on hold,
// also processes that do not use holds.
func TestMark(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a, c := b.attempt("{k}"), b.attempt("{claimed}")
		b.take(a, Mine)
		b.put("{claimed}", Entry{Codec: 4, Payload: []byte("old")}, long)
		b.claim(c, Mine)
		for _, key := range []string{"{k}", "{claimed}", "{absent}"} {
			b.mark(key, mine, long)
			b.life(key, long)
			b.read(b.attempt(key), Held)
			b.take(b.attempt(key), Held)
			b.claim(b.attempt(key), Held)
			b.read(b.attempt(key), Held)
		}
		b.fill(a, Entry{}, long, false)
		b.fill(c, Entry{}, long, false)
		b.renew(a, false)
		b.release(a)
		b.fail(c, long)
		b.read(b.attempt("{k}"), Held)
		b.read(b.attempt("{claimed}"), Held)
		b.delete("{k}")
		b.take(b.attempt("{k}"), Mine)
		expire := Expire(b.ctx, "{claimed}")
		b.rdb.Process(b.ctx, expire)
		b.check(expire.Err())
		b.take(b.attempt("{claimed}"), Mine)
	})
}

func TestMarkIsKept(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.mark("{k}", mine, 20*time.Second)
		b.put("{entry}", Entry{}, 20*time.Second)
		keep := func(key, token string) {
			t.Helper()
			cmd := KeepMark(b.ctx, key, token, long)
			b.rdb.Process(b.ctx, cmd)
			b.check(cmd.Err())
		}
		keep("{k}", theirs)
		b.life("{k}", 20*time.Second)
		keep("{k}", mine)
		b.life("{k}", long)
		keep("{entry}", mine)
		b.life("{entry}", 20*time.Second)
		keep("{absent}", mine)
		b.read(b.attempt("{absent}"), Absent)
		b.mark("{k}", mine, short)
		b.gone("{k}")
	})
}

// A writer's new value replaces its mark, if the mark is still there and no other writer holds the
// key.
func TestExchange(t *testing.T) {
	holding(t, func(t *testing.T, b *backend) {
		b.store.lag = 0
		for name, c := range map[string]struct {
			before func(key string)
			want   bool
		}{
			"alone":             {func(string) {}, true},
			"deleted":           {func(key string) { b.delete(key) }, false},
			"marked by another": {func(key string) { b.mark(key, theirs, long) }, false},
			"under a lease": {func(key string) {
				b.delete(key, keys.Hold(key))
				b.take(b.attempt(key), Mine)
				b.enter(key, mine, long)
			}, false},
			"held by another": {func(key string) { b.enter(key, theirs, long) }, false},
			"another's, over": {func(key string) { b.enter(key, theirs, -time.Second) }, false},
			"left":            {func(key string) { b.check(b.rdb.ZRem(b.ctx, keys.Hold(key), mine).Err()) }, false},
			"left to another": {func(key string) {
				b.enter(key, theirs, -time.Second)
				b.check(b.rdb.ZRem(b.ctx, keys.Hold(key), mine).Err())
			}, false},
			"over":         {func(key string) { b.enter(key, mine, 0) }, false},
			"replicas lag": {func(key string) { b.enter(key, "lag", long) }, true},
		} {
			key := "{" + name + "}"
			b.enter(key, mine, long)
			b.mark(key, mine, long)
			c.before(key)
			b.exchange(key, c.want)
			if b.exchange(key, false); !c.want {
				continue
			}
			b.payload(key, "written")
			b.life(key, long)
			if left := b.rdb.ZRange(b.ctx, keys.Hold(key), 0, -1).Val(); slices.Contains(left, mine) {
				t.Errorf("%s: it is still held by %q", name, left)
			}
		}
	})
}

// Where replicas are read, the key is on hold for as long as they may be behind.
func TestExchangeWithLag(t *testing.T) {
	holding(t, func(t *testing.T, b *backend) {
		for name, before := range map[string]time.Duration{"none": 0, "shorter": 10 * time.Second} {
			key := "{" + name + "}"
			b.enter(key, mine, long)
			if before > 0 {
				b.enter(key, "lag", before)
			}
			b.mark(key, mine, long)
			b.exchange(key, true)
			b.payload(key, "written")
			b.life(keys.Hold(key), long)
			b.claim(b.attempt(key), Held)
			b.delete(key)
			b.take(b.attempt(key), Held)
		}
	})
}

func TestMarksInAFullRedis(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t))
	b.store.Hold(0)
	b.put("{k}", Entry{Codec: 4, Payload: []byte("old")}, long)
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1").Err())
	b.mark("{k}", mine, long)
	b.read(b.attempt("{k}"), Held)
	if cmd := KeepMark(b.ctx, "{k}", mine, long); b.rdb.Process(b.ctx, cmd) != nil {
		t.Error(cmd.Err())
	}
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "0").Err())
	b.enter("{k}", mine, long)
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1").Err())
	if stored, err := b.store.Exchange(b.ctx, "{k}", mine, Entry{}, long); stored || !redis.HasErrorPrefix(err, "OOM") {
		t.Errorf("an entry, which is no delete: %v, %v", stored, err)
	}
}
