package lease

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/keys"
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
		if a.Holds() || a.Owes() {
			t.Error("the attempt holds something")
		}
		b.read(a, Absent)
		b.take(b.attempt("{other}"), Mine)

		b.check(b.rdb.Set(b.ctx, "{k}", "?", 0).Err())
		s, err := a.Take(b.ctx, []byte("?"))
		wantKind(t, "take", s, err, Held)
		b.take(a, Unknown) // what is there is answered first
		b.delete("{k}")

		b.hold("{k}", 30*time.Millisecond)
		b.gone(keys.Hold("{k}"))
		b.take(a, Mine)
		b.fill(a, Entry{Payload: []byte("v")}, long, true)
		b.hold("{k}", long)
		b.take(b.attempt("{k}"), Stored)
	})
}

func TestNoClaimIsGivenOnHold(t *testing.T) {
	holding(t, func(t *testing.T, b *backend) {
		b.hold("{absent}", long)
		b.claim(b.attempt("{absent}"), Held)
		b.read(b.attempt("{absent}"), Absent)

		b.put("{k}", Entry{Payload: []byte("v")}, long)
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
func TestHoldsAreAskedForOnlyIfThereAreSome(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.hold("{k}", long)
		a := b.attempt("{k}")
		a.Young = uint64(time.Now().UnixMicro())
		b.take(a, Mine)
	})
}
