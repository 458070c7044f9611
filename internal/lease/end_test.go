package lease

import (
	"testing"
	"time"
)

func TestFailLeavesAMarker(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.fail(a, 30*time.Second)
		b.read(b.attempt("k"), Failed)
		b.life("k", 30*time.Second)
		b.fill(a, Entry{}, long, false)
		b.release(a)
		b.read(b.attempt("k"), Failed)
	})
}

func TestMarkerOfAnUnstorableValue(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.unstorable(a, NotCarried, 30*time.Second)
		if s := b.read(b.attempt("k"), Unstorable); s.Reason != NotCarried {
			t.Errorf("reason %d", s.Reason)
		}
		b.life("k", 30*time.Second)
		b.take(b.attempt("k"), Unstorable)
		b.fill(a, Entry{}, long, false)
		refresh := b.attempt("k")
		b.claim(refresh, Mine)
		b.fill(refresh, Entry{Codec: 4, Payload: []byte("v")}, long, true)
		b.payload("k", "v")
	})
}

func TestTheMarkerOfAFailureRunsOut(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		for _, errorTTL := range []time.Duration{short, time.Microsecond, 0} {
			a := b.attempt("k")
			b.take(a, Mine)
			b.fail(a, errorTTL) // one below Redis' resolution is no error
			b.gone("k")
		}
		b.take(b.attempt("k"), Mine)
	})
}

func TestReleaseGivesTheLeaseUp(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.release(a) // nothing is held
		b.take(a, Mine)
		b.release(a)
		b.read(b.attempt("k"), Absent)
		b.take(b.attempt("k"), Mine)
		b.release(a)
		b.read(b.attempt("k"), Busy)
	})
}

func TestFailAndReleaseEndOnlyWhatIsMine(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		for name, end := range map[string]func(single){
			"fail":    func(a single) { b.fail(a, long) },
			"release": b.release,

			"unstorable": func(a single) { b.unstorable(a, TooLarge, long) },
		} {
			stale := func(key string) single {
				a := b.attempt(name + key)
				b.take(a, Mine)
				b.delete(name + key)
				return a
			}
			end(stale("absent"))
			b.read(b.attempt(name+"absent"), Absent)

			a := stale("leased")
			fresh := b.attempt(name + "leased")
			b.take(fresh, Mine)
			end(a)
			b.fill(fresh, Entry{}, long, true)

			a = stale("stored")
			b.put(name+"stored", Entry{Codec: 4, Payload: []byte("v")}, long)
			end(a)
			b.payload(name+"stored", "v")

			a = stale("claimed")
			b.put(name+"claimed", Entry{Codec: 4, Payload: []byte("v")}, long)
			fresh = b.attempt(name + "claimed")
			b.claim(fresh, Mine)
			end(a)
			if s := b.payload(name+"claimed", "v"); !s.Entry.Claimed {
				t.Errorf("%s: the claim has gone", name)
			}
			b.fill(fresh, Entry{}, long, true)
		}
	})
}

func TestReleaseAfterFillLeavesTheEntry(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
		b.release(a)
		b.payload("k", "v")
		b.fail(a, long)
		b.payload("k", "v")
	})
}
