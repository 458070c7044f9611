package lease

import (
	"math"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/groups"
)

func TestFillStoresTheEntry(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		soon := time.UnixMilli(time.Now().Add(time.Hour).UnixMilli())
		for key, want := range map[string]Entry{
			"plain":         {Codec: 4, Payload: []byte("value"), Cost: 1234 * time.Microsecond, Expiry: soon},
			"null":          {Null: true, Expiry: soon},
			"codec":         {Codec: 15, Payload: []byte{0, 1, 0xff, '\r', '\n'}, Expiry: soon},
			"empty":         {Codec: 1, Expiry: time.UnixMilli(0)},
			"far":           {Codec: 4, Payload: []byte{1}, Expiry: time.UnixMilli(1<<48 - 1), Cost: math.MaxUint32 * time.Microsecond},
			"null of codec": {Null: true, Codec: 7, Payload: []byte("x"), Expiry: soon},
			"large":         {Codec: 4, Payload: make([]byte, 1<<20), Expiry: soon},
			"groups":        {Codec: 1, Grouped: true, Known: 1 << 50, Groups: groups.SetOf(1, 2), Payload: []byte("v"), Expiry: soon},
			"null in group": {Null: true, Grouped: true, Known: 1, Groups: groups.SetOf(3), Expiry: soon},
		} {
			a := b.attempt(key)
			b.take(a, Mine)
			b.fill(a, want, 30*time.Second, true)
			b.life(key, 30*time.Second)
			want.Stamp = a.token
			sameEntry(t, b.read(b.attempt(key), Stored).Entry, want)
		}
	})
}

func sameEntry(t *testing.T, got, want Entry) {
	t.Helper()
	if got.Null != want.Null || got.Compressed != want.Compressed || got.Keyed != want.Keyed ||
		got.Codec != want.Codec || got.Claimed != want.Claimed || got.Stamp != want.Stamp ||
		!got.Expiry.Equal(want.Expiry) || got.Cost != want.Cost || got.ClaimEnds != want.ClaimEnds &&
		want.ClaimEnds != 0 ||
		got.Grouped != want.Grouped || got.Known != want.Known || string(got.Groups) != string(want.Groups) ||
		string(got.Payload) != string(want.Payload) {
		got.Payload, want.Payload = got.Payload[:min(len(got.Payload), 100)], want.Payload[:min(len(want.Payload), 100)]
		t.Errorf("the entry is\n%+v, want\n%+v", got, want)
	}
}

func TestFillIsRefusedAfterDelete(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.delete("k")
		b.fill(a, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.read(a, Absent)
	})
}

func TestFillIsRefusedAfterTheLeaseRanOut(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.store.Attempt("k", short)
		b.take(a, Mine)
		b.gone("k")
		b.renew(a, false)
		b.fill(a, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.read(a, Absent)
	})
}

func TestFillIsRefusedWhenTheLeaseIsAnothers(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		stale, fresh := b.attempt("k"), newBackend(t, b.rdb).attempt("k")
		b.take(stale, Mine)
		b.delete("k")
		b.take(fresh, Mine)
		b.fill(stale, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.read(b.attempt("k"), Busy)
		b.fill(fresh, Entry{Codec: 4, Payload: []byte("fresh")}, long, true)
		b.fill(stale, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.payload("k", "fresh")
	})
}

// A second load of the same process is another load: the first one's value is still of before the
// delete.
func TestSecondLoadOfAProcessDoesNotReviveTheFirst(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		stale, fresh := b.attempt("k"), b.attempt("k")
		b.take(stale, Mine)
		b.delete("k")
		b.take(fresh, Mine)
		b.renew(stale, false)
		b.fill(stale, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.fill(fresh, Entry{Codec: 4, Payload: []byte("fresh")}, long, true)
		b.payload("k", "fresh")
	})
}

// An attempt may load again after its fill was refused: with a new token.
func TestSecondLoadOfAnAttemptHasANewToken(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		first := a.token
		b.delete("k")
		b.fill(a, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.take(a, Mine)
		if a.token == first {
			t.Error("the token is the same")
		}
		b.fill(a, Entry{Codec: 4, Payload: []byte("fresh")}, long, true)
		b.payload("k", "fresh")
	})
}

func TestRepeatedFillRecognisesItself(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, 30*time.Second, true)
		b.fill(a, Entry{Codec: 4, Payload: []byte("again")}, long, true)
		b.payload("k", "v") // it is there already, and is not written again
		b.life("k", 30*time.Second)

		b.delete("k")
		b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, false)
		b.read(a, Absent)
	})
}

func TestRepeatedFillDoesNotUndoALaterOne(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a, later := b.attempt("k"), b.attempt("k")
		b.take(a, Mine)
		b.fill(a, Entry{Codec: 4, Payload: []byte("old")}, long, true)
		b.claim(later, Mine)
		b.fill(a, Entry{Codec: 4, Payload: []byte("old")}, long, false)
		b.fill(later, Entry{Codec: 4, Payload: []byte("new")}, long, true)
		b.fill(a, Entry{Codec: 4, Payload: []byte("old")}, long, false)
		b.payload("k", "new")
	})
}
