package promises

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/hold"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Holds of writers keep keys from being cached during a write.

// strict are steady options for a fleet with such writers. Its holds do not end during a test.
var strict = cacheaside.Options{
	RedisTimeout: time.Minute, ReadTimeout: time.Minute, MaxStaleness: time.Minute,
	LeaseTTL: time.Minute, QueueTimeout: time.Minute, MemoryBytes: -1, StrictWrites: true,
}

func (p process) hold(t testing.TB, rows ...int) *cacheaside.Hold {
	t.Helper()
	h, err := p.cache.Hold(t.Context(), p.named(rows...)...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (p process) named(rows ...int) (named []cacheaside.Key) {
	for _, row := range rows {
		named = append(named, p.Key(row))
	}
	return named
}

func (p process) storeHeld(t testing.TB, h *cacheaside.Hold, key int, row string, want bool) {
	t.Helper()
	if stored, err := writeside.Of(p.Loader).StoreHeld(t.Context(), h, key, row); stored != want || err != nil {
		t.Fatalf("stored: %v, %v; want %v", stored, err, want)
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onHold fails unless the key is on hold as wanted.
func (b backend) onHold(t testing.TB, key int, want bool) {
	t.Helper()
	if n := b.admin.Exists(t.Context(), keys.Hold(redisKey(key))).Val(); (n == 1) != want {
		t.Fatalf("on hold: %v", n == 1)
	}
}

// holds returns the first byte of a key's value, which is its kind.
func (b backend) holds(t testing.TB, key int) byte {
	t.Helper()
	return (b.admin.Get(t.Context(), redisKey(key)).Val() + "\x00")[0]
}

const anEntry, aMark = 0xE1, 0xC1

// From Hold to Release, a key is loaded by each caller that reads it and not stored, in all
// processes, even if one of them has no such writers. Then it is cached again.
func TestHold(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newTable(map[int]string{1: "old", 2: "other"})
		p, q, r := start(t, b, d, strict, nil), start(t, b, d, strict, nil), start(t, b, d, steadyNoMemory, nil)
		all := []process{p, q, r}
		p.want(t, 1, "old", nil)
		p.want(t, 2, "other", nil)
		h := p.hold(t, 1)
		loads := func(want int64) {
			t.Helper()
			n := d.loads.Load()
			for _, p := range all {
				p.want(t, 1, d.rows[1], nil)
				p.want(t, 2, "other", nil)
				if found, err := p.GetMany(t.Context(), []int{1, 2}); err != nil || found[1] != d.rows[1] {
					t.Errorf("%v, %v", found, err)
				}
				if got, err := p.Refresh(t.Context(), 1); got != d.rows[1] || err != nil {
					t.Error(got, err)
				}
			}
			if got := d.loads.Load() - n; got != want {
				t.Errorf("%d loads", got)
			}
		}
		loads(9)
		if b.onHold(t, 1, true); b.holds(t, 1) != aMark {
			t.Errorf("the key has the kind %x, want the mark", b.holds(t, 1))
		}
		for key, err := range warming(q.Loader, t.Context(), slices.Values([]int{1}), 0) {
			if !errors.Is(err, rows.ErrNotStored) {
				t.Error(key, err)
			}
		}
		noError(t, h.Check(t.Context()))
		d.write(1, "new")
		loads(9)
		noError(t, h.Check(t.Context()))
		noError(t, h.Invalidate(t.Context()))
		b.onHold(t, 1, false)
		loads(4) // one Get, and a Refresh in each process
		for i, p := range all {
			held := int64(6)
			if i == 1 {
				held++ // by Warm
			}
			if s := p.Stats(); s.Held != held || s.Unvalidated != held ||
				s.RedisErrors+s.WriteErrors+s.Undecodable+s.HoldsLost+s.HoldsLeft > 0 {
				t.Errorf("%d: %+v", i, s)
			}
		}
		noError(t, h.Invalidate(t.Context())) // there is nothing left to release
		h.Abandon()
		if s := p.Stats(); s.HoldsLeft > 0 || s.Invalidated != 1 {
			t.Errorf("%+v", s)
		}
		if err := h.Check(t.Context()); !errors.Is(err, hold.ErrEnded) {
			t.Error(err)
		}
		if err := h.Add(t.Context(), p.Key(2)); !errors.Is(err, hold.ErrEnded) {
			t.Error(err)
		}
	})
}

// A load under a hold must read from the primary, in a call of its own, also in a process without
// such writers.
func TestPreferPrimaryOnHold(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "row", 2: "row", 3: "row"})
		p, q := startReplicated(t, b.client(t), d, strict), startReplicated(t, b.client(t), d, steadyNoMemory)
		p.hold(t, 1, 2)
		for _, p := range []process{p, q} {
			b.admin.Del(t.Context(), redisKey(3))
			n := d.called()
			if found, err := p.GetMany(t.Context(), upTo(4)); len(found) != 3 || err != nil {
				t.Fatal(found, err)
			}
			calls := d.since(n)
			if len(calls) != 2 || !calls[0].primary || !slices.Equal(calls[0].keys, []int{1, 2}) || calls[1].primary {
				t.Errorf("%+v", calls)
			}
			b.admin.Del(t.Context(), redisKey(0))
		}
	})
}

// The result of a load that is in progress when its key is put on hold is neither stored nor
// returned: the row may have been written since.
func TestHoldRefusesLoadsInProgress(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		for _, released := range []bool{false, true} {
			flushAll(t, b)
			d := newTable(map[int]string{1: "old"})
			p, q := start(t, b, d, strict, nil), start(t, b, d, strict, nil)
			reached, resume := d.pause(1)
			defer resume()
			got := later(func() (string, error) { return q.Get(t.Context(), 1) })
			reach(t, reached, "the load")
			h := p.hold(t, 1)
			d.write(1, "new")
			if released {
				noError(t, h.Invalidate(t.Context()))
			}
			resume()
			wantResult(t, got, "new")
			if s := q.Stats(); s.Refused != 1 || (s.Held == 0) != released || (b.holds(t, 1) == anEntry) != released {
				t.Errorf("%+v", s)
			}
			h.Abandon()
		}
	})
}

// Of two writers that hold a key, each ends its own hold. The write of the last one is not stored
// before it ends.
func TestHoldsOfTwoWriters(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		d := newTable(map[int]string{1: "old"})
		p, q := start(t, b, d, strict, nil), start(t, b, d, strict, nil)
		p.want(t, 1, "old", nil)
		one, two := p.hold(t, 1), q.hold(t, 1)
		d.write(1, "one")
		noError(t, one.Invalidate(t.Context())) // the mark has gone with it
		for _, p := range []process{p, q} {
			p.want(t, 1, "one", nil)
			if _, err := p.Refresh(t.Context(), 1); err != nil {
				t.Error(err)
			}
		}
		if b.holds(t, 1) != 0 {
			t.Error("the value is stored")
		}
		noError(t, two.Check(t.Context()))
		d.write(1, "two")
		p.want(t, 1, "two", nil)
		q.storeHeld(t, two, 1, "two", false)
		noError(t, two.Invalidate(t.Context()))
		b.onHold(t, 1, false)
		p.want(t, 1, "two", nil)
	})
}

// The written value replaces the hold.
func TestStoreHeld(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		long := strings.Repeat("long", 100)
		d := newTable(map[int]string{1: "old", 2: "old", 3: "old"})
		p, q := start(t, b, d, strict, nil), start(t, b, d, strict, &cacheaside.LoaderOptions{MaxValueBytes: 400})
		p.want(t, 1, "old", nil)
		q.want(t, 1, "old", nil)
		h := p.hold(t, 1, 2)
		noError(t, h.Add(t.Context(), p.Key(3), p.Key(1)))
		d.write(1, "new")
		d.write(2, "new")
		d.write(3, long)
		n := d.loads.Load()
		p.storeHeld(t, h, 1, "new", true)
		b.onHold(t, 1, false)
		b.onHold(t, 2, true)
		p.want(t, 1, "new", nil)
		q.want(t, 1, "new", nil)
		if _, err := writeside.Of(p.Loader).StoreHeld(t.Context(), h, 1, "again"); !errors.Is(err, hold.ErrNotHeld) {
			t.Error(err)
		}
		if _, err := writeside.Of(p.Loader).StoreHeld(t.Context(), h, 4, "another"); !errors.Is(err, hold.ErrNotHeld) {
			t.Error(err)
		}
		if _, err := writeside.Of(q.Loader).StoreHeld(t.Context(), h, 3, "of another cache"); !errors.Is(err,
			hold.ErrNotHeld) {
			t.Error(err)
		}
		own := q.hold(t, 3)
		q.storeHeld(t, own, 3, long+"er", false)
		p.storeHeld(t, h, 3, long, false) // another writer's hold
		noError(t, own.Invalidate(t.Context()))
		noError(t, h.Invalidate(t.Context()))
		q.want(t, 1, "new", nil)
		if got := d.loads.Load() - n; got != 0 {
			t.Errorf("%d loads", got)
		}
		for i := range 3 {
			b.onHold(t, i+1, false)
		}
		p.want(t, 2, "new", nil)
		p.want(t, 3, long, nil)
		if _, err := writeside.Of(p.Loader).StoreHeld(t.Context(), h, 2, "new"); !errors.Is(err, hold.ErrEnded) {
			t.Error(err)
		}
		if s := p.Stats(); s.StoredHeld != 1 || s.RedisErrors+s.HoldsLost+s.HoldsLeft > 0 {
			t.Errorf("%+v", s)
		}
		if s := q.Stats(); s.StoredHeld != 0 || s.TooLarge != 1 || s.RedisErrors > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The written value is not stored if another process has held or invalidated the key or its loader
// since, because it may have written a newer value.
func TestStoreHeldIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		for name, meanwhile := range map[string]func(p, q process){
			"held by another":   func(_, q process) { t.Cleanup(q.hold(t, 1).Abandon) },
			"held and released": func(_, q process) { noError(t, q.hold(t, 1).Invalidate(t.Context())) },
			"held and stored": func(_, q process) {
				h := q.hold(t, 1)
				writeside.Of(q.Loader).StoreHeld(t.Context(), h, 1, "new")
				h.Invalidate(t.Context())
			},
			"invalidated":             func(_, q process) { noError(t, q.Invalidate(t.Context(), 1)) },
			"invalidated by itself":   func(p, _ process) { noError(t, p.cache.InvalidateKeys(t.Context(), p.Key(1))) },
			"deleted by others":       func(_, _ process) { b.admin.Del(t.Context(), redisKey(1)) },
			"the hold is lost":        func(_, _ process) { b.admin.Del(t.Context(), keys.Hold(redisKey(1))) },
			"everything is lost":      func(_, _ process) { flushAll(t, b) },
			"and another has read it": func(_, q process) { flushAll(t, b); q.Get(t.Context(), 1) },
		} {
			inUse(t, b, time.Hour)
			d := newTable(map[int]string{1: "old"})
			p, q := start(t, b, d, strict, nil), start(t, b, d, strict, nil)
			p.want(t, 1, "old", nil)
			h := p.hold(t, 1)
			d.write(1, "mine")
			meanwhile(p, q)
			d.write(1, "new")
			if stored, err := writeside.Of(p.Loader).StoreHeld(t.Context(), h, 1, "mine"); stored || err != nil {
				t.Errorf("%s: %v, %v", name, stored, err)
			}
			noError(t, h.Invalidate(t.Context()))
			p.want(t, 1, "new", nil)
			q.want(t, 1, "new", nil)
		}
	})
}

// A writer that is killed after its write is remembered while others hold the key: then the
// database may have its value.
func TestStoreHeldAfterTheOtherWasKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		inUse(t, b, time.Hour)
		o := strict
		o.LeaseTTL = time.Second
		d := newTable(map[int]string{1: "old"})
		p, killed := startOn(t, b.client(t), d, o, nil), startOn(t, b.client(t), d, o, nil)
		defer p.cache.Close()
		p.want(t, 1, "old", nil)
		killed.hold(t, 1)
		h := p.hold(t, 1)
		d.write(1, "older")
		d.write(1, "new")
		killed.cache.Close()
		time.Sleep(10 * time.Second)
		p.storeHeld(t, h, 1, "older", false)
		noError(t, h.Invalidate(t.Context()))
		p.want(t, 1, "new", nil)
		p.storeHeld(t, p.hold(t, 1), 1, "newest", true) // the next holder is the only one
	})
}

// After an InvalidateAll, no earlier write is stored.
func TestStoreHeldAfterInvalidateAll(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		d := newTable(map[int]string{1: "old"})
		p := start(t, b, d, strict, nil)
		p.want(t, 1, "old", nil)
		h := p.hold(t, 1)
		d.write(1, "mine")
		d.write(1, "new") // as in an import
		noError(t, p.InvalidateAll(t.Context()))
		writeside.Of(p.Loader).StoreHeld(t.Context(), h, 1, "mine")
		noError(t, h.Invalidate(t.Context()))
		p.want(t, 1, "new", nil)
	})
}

// A loader that has read nothing does not know its generation. It does the next time.
func TestStoreHeldBeforeAnyRead(t *testing.T) {
	b := realBackend(t)
	flushAll(t, b)
	d := newTable(map[int]string{1: "new"})
	p := start(t, b, d, strict, nil)
	testenv.Eventually(t, "a value that is stored", func() bool {
		h := p.hold(t, 1)
		stored, err := writeside.Of(p.Loader).StoreHeld(t.Context(), h, 1, "new")
		noError(t, err)
		noError(t, h.Invalidate(t.Context()))
		return stored
	})
	if p.want(t, 1, "new", nil); d.loads.Load() != 0 {
		t.Error("the row is loaded")
	}
}

// With replicas of the database, a key stays on hold after a write for the replica lag, whether its
// value was stored or not.
func TestHoldAndReplicaLag(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		o := lagging
		o.StrictWrites, o.MemoryBytes = true, -1
		for _, store := range []bool{false, true} {
			inUse(t, b, time.Hour)
			d := newReplicated(map[int]string{1: "old"})
			p := startReplicated(t, b.client(t), d, o)
			p.want(t, 1, "old", nil)
			h := p.hold(t, 1)
			d.write(1, "new")
			if p.want(t, 1, "new", nil); !d.since(d.called() - 1)[0].primary {
				t.Error("the row is read from a replica")
			}
			if store {
				p.storeHeld(t, h, 1, "new", true)
			}
			noError(t, h.Invalidate(t.Context()))
			b.onHold(t, 1, true)
			b.stored(t, 1, store)
			b.admin.Del(t.Context(), redisKey(1)) // for example evicted
			p.want(t, 1, "new", nil)
			b.stored(t, 1, false)

			h = p.hold(t, 1) // the next hold too
			d.write(1, "newer")
			if p.want(t, 1, "newer", nil); store {
				p.storeHeld(t, h, 1, "newer", true)
			}
			noError(t, h.Invalidate(t.Context()))
			p.want(t, 1, "newer", nil)
		}
	})
}

// Memory tiers remove a key that is put on hold, and store nothing of it.
func TestHoldAndMemory(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		o := strict
		o.MemoryBytes = steady.MemoryBytes
		d := newTable(map[int]string{1: "old"})
		p, q := start(t, b, d, o, nil), start(t, b, d, o, nil)
		p.remembers(t, 1, "old")
		q.remembers(t, 1, "old")
		h := p.hold(t, 1)
		d.write(1, "new")
		p.want(t, 1, "new", nil)
		q.sees(t, 1, "new", testenv.Hang)
		d.write(1, "newer")
		for _, p := range []process{p, q} {
			p.settle()
			p.want(t, 1, "newer", nil)
		}
		p.storeHeld(t, h, 1, "newer", true)
		noError(t, h.Invalidate(t.Context()))
		p.remembers(t, 1, "newer")
		// A hold is announced twice if its server did not have the script: q may receive the second
		// message now.
		q.awaitMemory(t, 1, "newer")
	})
}

// A hold lives until its owner ends it, or for LeaseTTL after the owner was killed.
func TestHoldIsRenewed(t *testing.T) {
	for name, end := range map[string]func(p process, h *cacheaside.Hold){
		"abandoned": func(_ process, h *cacheaside.Hold) { h.Abandon() },
		"closed":    func(p process, _ *cacheaside.Hold) { p.cache.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := embedded(t)
				o := strict
				o.LeaseTTL = time.Second
				d := newTable(map[int]string{1: "row", 2: "row"})
				p := startOn(t, b.client(t), d, o, nil)
				h := p.hold(t, 1)
				time.Sleep(300 * time.Millisecond)
				noError(t, h.Add(t.Context(), p.Key(2)))
				for range 30 {
					time.Sleep(310 * time.Millisecond)
					for key := range 2 {
						if b.onHold(t, key+1, true); b.holds(t, key+1) != aMark {
							t.Fatal("the mark is missing")
						}
					}
				}
				noError(t, h.Check(t.Context()))
				end(p, h)
				time.Sleep(600 * time.Millisecond)
				b.onHold(t, 1, true)
				time.Sleep(410 * time.Millisecond)
				if b.onHold(t, 1, false); b.holds(t, 1) != 0 {
					t.Error("the mark is not removed")
				}
				if s := p.Stats(); s.HoldsLost != 0 || s.HoldsLeft != map[string]int64{"abandoned": 2}[name] {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A lost hold is not taken again, because a value read in between may have been stored. The check
// before the commit reports the loss.
func TestLostHold(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newTable(map[int]string{1: "old", 2: "old"})
		p, q := start(t, b, d, strict, nil), start(t, b, d, strict, nil)
		h := p.hold(t, 1, 2)
		noError(t, h.Check(t.Context()))
		b.admin.Del(t.Context(), redisKey(1), keys.Hold(redisKey(1)))
		q.want(t, 1, "old", nil) // and the value is stored
		for range 2 {
			err := h.Check(t.Context())
			failed, ok := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err)
			if !errors.Is(err, cacheaside.ErrHoldLost) || !ok || len(failed.Errs) != 1 || failed.Errs[p.Key(1)] == nil {
				t.Errorf("%v", err)
			}
			b.onHold(t, 1, false)
		}
		if s := p.Stats(); s.HoldsLost != 1 {
			t.Errorf("%+v", s)
		}
		noError(t, h.Invalidate(t.Context()))
		if b.holds(t, 1) != 0 {
			t.Error("the value is still cached")
		}
		b.onHold(t, 2, false)
	})
}

// A hold is also lost by the process' own clock, if Redis is unreachable for too long.
func TestHoldIsLostByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		o := strict
		o.LeaseTTL = time.Second
		p := startOn(t, b.client(t), newTable(map[int]string{1: "row"}), o, nil)
		defer p.cache.Close()
		h := p.hold(t, 1)
		time.Sleep(100 * time.Millisecond)
		m.SetError("out of order")
		time.Sleep(800 * time.Millisecond)
		if err := h.Check(t.Context()); !errors.Is(err, cacheaside.ErrRedis) || errors.Is(err, cacheaside.ErrHoldLost) {
			t.Error(err)
		}
		m.SetError("")
		noError(t, h.Check(t.Context()))
		m.SetError("out of order")
		time.Sleep(1100 * time.Millisecond)
		m.SetError("")
		if s := p.Stats(); s.HoldsLost != 1 || s.RedisErrors == 0 {
			t.Errorf("%+v", s)
		}
		if err := h.Check(t.Context()); !errors.Is(err, cacheaside.ErrHoldLost) {
			t.Error(err)
		}
	})
}

// A late hold, whose caller has left, takes effect after another process has invalidated the key.
// It must not make an older value pass for the newest.
func TestLateHoldIsSafe(t *testing.T) {
	server := testenv.SharedRedis(t)
	b := backend{client: func(t testing.TB) redis.UniversalClient { return server.Client(t) }, admin: server.Client(t)}
	inUse(t, b, time.Hour)
	rdb, late := withLateRequest(t, server, redisKey(1)+":hold", true)
	late.seen.Store(true) // not delayed so far
	d := newTable(map[int]string{1: "old"})
	p, q := startOn(t, rdb, d, strict, nil), start(t, b, d, strict, nil)
	p.want(t, 1, "old", nil)
	noError(t, p.hold(t, 1).Invalidate(t.Context())) // loads the scripts
	late.seen.Store(false)
	h := p.hold(t, 1)
	testenv.Receive(t, "the hold that comes late", late.sent)
	d.write(1, "mine")
	d.write(1, "new")
	noError(t, q.Invalidate(t.Context(), 1))
	if b.holds(t, 1) == aMark {
		t.Fatal("the late hold takes effect too early")
	}
	late.deliver()
	testenv.Receive(t, "the answer to the hold that comes late", late.done)
	if b.holds(t, 1) != aMark {
		t.Fatalf("the key has the kind %x, want the mark", b.holds(t, 1))
	}
	p.storeHeld(t, h, 1, "mine", false)
	noError(t, h.Invalidate(t.Context()))
	q.want(t, 1, "new", nil)
}

// If Redis is unreachable, nothing is held, and Hold returns an error.
func TestHoldFailsWithoutRedis(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, m *miniredis.Miniredis, b backend) {
		d := newTable(map[int]string{1: "old"})
		p := startOn(t, b.client(t), d, strict, nil)
		p.want(t, 1, "old", nil)
		m.SetError("out of order")
		h, err := p.cache.Hold(t.Context(), p.Key(1), p.Key(2))
		if failed, ok := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err); h != nil || !ok ||
			len(failed.Errs) != 2 || !errors.Is(err, cacheaside.ErrRedis) || strings.Contains(err.Error(), "{1}") {
			t.Error(h, err)
		}
		m.SetError("")
		h = p.hold(t, 1)
		m.SetError("out of order")
		if err := h.Invalidate(t.Context()); !errors.Is(err, cacheaside.ErrRedis) {
			t.Error(err)
		}
		m.SetError("")
		b.onHold(t, 1, true)
		noError(t, h.Invalidate(t.Context()))
		b.onHold(t, 1, false)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.cache.Hold(ctx, p.Key(1)); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestHoldIsRefused(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		plain, p := startOn(t, b.client(t), newTable(nil), steadyNoMemory, nil), startOn(t, b.client(t), newTable(nil),
			strict, nil)
		if _, err := plain.cache.Hold(t.Context(), plain.Key(1)); err == nil ||
			!strings.Contains(err.Error(), "Options.StrictWrites") {
			t.Error(err)
		}
		for _, k := range []cacheaside.Key{p.AllKeys(), {Loader: "row", Text: "1", Group: true},
			{Loader: "a:b", Text: "1"}, {Loader: "row", Version: "{}", Text: "1"}} {
			_, err := p.cache.Hold(t.Context(), p.Key(2), k)
			if failed, ok := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err); !ok || len(failed.Errs) != 1 ||
				failed.Errs[k] == nil {
				t.Errorf("%v: %v", k, err)
			}
			b.onHold(t, 2, false)
		}
		h := p.hold(t, 1)
		noError(t, h.Add(t.Context(), cacheaside.Key{Loader: "row", Text: "1"},
			cacheaside.Key{Loader: "row", Version: "1", Text: "1"}))
		p.cache.Close()
		_, holdErr := p.cache.Hold(t.Context(), p.Key(2))
		_, storeErr := writeside.Of(p.Loader).StoreHeld(t.Context(), h, 1, "")
		for i, err := range []error{holdErr, storeErr, h.Check(t.Context()), h.Add(t.Context(), p.Key(2)),
			h.Invalidate(t.Context())} {
			if !errors.Is(err, cacheaside.ErrClosed) {
				t.Errorf("%d: %v", i, err)
			}
		}
		if h.Abandon(); p.Stats().HoldsLeft != 1 {
			t.Errorf("%d holds are left, want 1", p.Stats().HoldsLeft)
		}
	})
}

// Without Redis, the process itself remembers the holds.
func TestWriterHoldWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := strict
		o.MemoryBytes, o.LeaseTTL = steady.MemoryBytes, time.Second
		d := newTable(map[int]string{1: "old"})
		p := startOn(t, nil, d, o, nil)
		defer p.cache.Close()
		p.remembers(t, 1, "old")
		one, two := p.hold(t, 1), p.hold(t, 1)
		noError(t, one.Add(t.Context(), p.Key(1)))
		d.write(1, "new")
		loads := func(row string, cached bool) {
			t.Helper()
			n := d.loads.Load()
			for range 2 {
				p.want(t, 1, row, nil)
				p.settle()
			}
			if got := d.loads.Load() - n; (got < 2) != cached {
				t.Fatalf("%d loads", got)
			}
		}
		loads("new", false)
		noError(t, one.Check(t.Context()))
		p.storeHeld(t, one, 1, "new", false)
		noError(t, one.Invalidate(t.Context()))
		noError(t, one.Invalidate(t.Context()))
		time.Sleep(time.Minute)
		loads("new", false)
		d.write(1, "newer")
		loads("newer", false)
		two.Abandon()
		time.Sleep(900 * time.Millisecond)
		loads("newer", false)
		time.Sleep(200 * time.Millisecond)
		loads("newer", true)
	})
}

// Many keys are held, checked and released in a few trips.
func TestHoldTrips(t *testing.T) {
	b := realBackend(t)
	flushAll(t, b)
	count := &tally{}
	count.take()
	rdb := b.client(t)
	rdb.AddHook(count)
	d := newTable(map[int]string{1: "row"})
	p := startOn(t, rdb, d, strict, nil)
	p.want(t, 1, "row", nil)
	h := p.hold(t, 1)
	noError(t, h.Check(t.Context()))
	p.storeHeld(t, h, 1, "row", true)
	// Loads all scripts and opens connections.
	noError(t, p.hold(t, upTo(1000)...).Invalidate(t.Context()))
	for _, n := range []int{1, 100, 1000} {
		var h *cacheaside.Hold
		want := 1 + n/501 + n/1000 // pipelines of a thousand commands
		for _, step := range []struct {
			what string
			f    func()
		}{
			{"hold", func() { h = p.hold(t, upTo(n)...) }},
			{"check", func() { noError(t, h.Check(t.Context())) }},
			{"release", func() { noError(t, h.Invalidate(t.Context())) }},
		} {
			count.take()
			step.f()
			if got, _ := count.take(); got > want {
				t.Errorf("%s of %d keys: %d round trips, want %d", step.what, n, got, want)
			}
		}
	}
	h = p.hold(t, 1)
	count.take()
	p.storeHeld(t, h, 1, "row", true)
	noError(t, h.Invalidate(t.Context()))
	if got, _ := count.take(); got != 1 {
		t.Errorf("%d round trips to store", got)
	}
	checkDocumented(t, b)
}

// A Hold may be used by several goroutines, in any way, and no key stays on hold. In a bubble no
// hold is lost. On a real server one can be lost if the machine stands still for longer than its
// life.
func TestHoldIsSafeForConcurrentUse(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		b := realBackend(t)
		inUse(t, b, time.Hour)
		testHoldsAtOnce(t, b.client(t), 100, testenv.Accepting)
	})
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		rounds := 100
		if rdb != nil {
			inUse(t, backend{admin: rdb}, time.Hour)
			rounds = 30
		}
		testHoldsAtOnce(t, rdb, rounds, true)
	})
}

func testHoldsAtOnce(t *testing.T, rdb redis.UniversalClient, rounds int, inTime bool) {
	o := strict
	o.LeaseTTL = 300 * time.Millisecond
	d := newTable(map[int]string{0: "row", 1: "row", 2: "row", 3: "row"})
	p := startOn(t, rdb, d, o, nil)
	for range rounds {
		h := p.hold(t, 0)
		var all sync.WaitGroup
		for g := range 6 {
			all.Go(func() {
				key := rand.IntN(4)
				switch g {
				case 0:
					h.Check(t.Context())
				case 1, 2:
					h.Add(t.Context(), p.named(0, key)...)
				case 3:
					writeside.Of(p.Loader).StoreHeld(t.Context(), h, key, "row")
				case 4:
					time.Sleep(rand.N(2 * time.Millisecond))
					h.Invalidate(t.Context())
				case 5:
					if rand.IntN(5) == 0 {
						h.Abandon()
					}
					p.Get(t.Context(), key)
				}
			})
		}
		all.Wait()
		noError(t, h.Invalidate(t.Context()))
	}
	for key := range 4 {
		testenv.Eventually(t, "the end of all holds", func() bool {
			held := p.Stats().Held
			p.want(t, key, "row", nil)
			return p.Stats().Held == held
		})
	}
	if s := p.Stats(); inTime && s.HoldsLost > 0 {
		t.Errorf("%+v", s)
	}
}

// While the slot of a key moves between nodes, writers can hold it, and no reader sees a value
// older than the last write.
func TestHoldsWhileASlotMoves(t *testing.T) {
	c := testenv.SharedCluster(t)
	b := backend{client: func(t testing.TB) redis.UniversalClient { return c.Client(t) }, admin: c.Client(t)}
	inUse(t, b, time.Hour)
	var version atomic.Int64
	load := func(context.Context, int) (string, error) { return strconv.FormatInt(version.Load(), 10), nil }
	var processes []process
	for range 2 {
		cache, err := cacheaside.New(b.client(t), &strict)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cache.Close() })
		l, err := cacheaside.NewLoader(cache, "row", load, nil)
		if err != nil {
			t.Fatal(err)
		}
		processes = append(processes, process{l, cache})
	}
	const key = 1
	slot := int(b.admin.ClusterKeySlot(t.Context(), redisKey(key)).Val())
	var stop atomic.Bool
	var all sync.WaitGroup
	var reads, writes, stored atomic.Int64
	for i := range 4 {
		all.Go(func() {
			for !stop.Load() {
				least := version.Load()
				text, err := processes[i%2].Get(context.Background(), key)
				if got, _ := strconv.ParseInt(text, 10, 64); err != nil || got < least {
					t.Errorf("read version %d after version %d was written, %v", got, least, err)
				}
				reads.Add(1)
			}
		})
	}
	all.Go(func() {
		p := processes[0]
		for !stop.Load() {
			h, err := p.cache.Hold(context.Background(), p.Key(key))
			if err != nil {
				t.Error(err)
				continue
			}
			if err := h.Check(context.Background()); err != nil {
				t.Error(err)
			}
			v := version.Add(1)
			if v%2 == 0 {
				if ok, _ := writeside.Of(p.Loader).StoreHeld(context.Background(), h, key,
					strconv.FormatInt(v, 10)); ok {
					stored.Add(1)
				}
			}
			if err := h.Invalidate(context.Background()); err != nil {
				t.Error(err)
			}
			writes.Add(1)
			time.Sleep(5 * time.Millisecond)
		}
	})
	from, to := slotOwner(t, c, key)
	for range 6 {
		goOn := func() { // reads and writes
			r, w := reads.Load(), writes.Load()
			testenv.Eventually(t, "more reads and writes",
				func() bool { return reads.Load() > r+20 && writes.Load() > w+2 })
		}
		moveSlot(t, c, slot, c.Nodes[from], c.Nodes[to], goOn)
		goOn()
		from, to = to, from
	}
	stop.Store(true)
	all.Wait()
	s := processes[1].Stats()
	t.Logf("%d reads, %d writes, %d stored by them; of one process %d hits, %d held", reads.Load(), writes.Load(),
		stored.Load(), s.RedisHits, s.Held)
	if writes.Load() == 0 || stored.Load() == 0 || s.RedisHits == 0 {
		t.Error("too few operations for a verdict")
	}
}

// Keys are put on hold, checked and released in a full Redis.
func TestHoldsInAFullRedis(t *testing.T) {
	server := testenv.StartRedis(t, "--maxmemory-policy", "noeviction")
	b := backend{admin: server.Client(t)}
	inUse(t, b, time.Hour)
	d := newTable(map[int]string{1: "old"})
	p := startOn(t, server.Client(t), d, strict, nil)
	p.want(t, 1, "old", nil)
	noError(t, b.admin.ConfigSet(t.Context(), "maxmemory", "1").Err())
	h := p.hold(t, 1)
	noError(t, h.Check(t.Context()))
	d.write(1, "new")
	p.want(t, 1, "new", nil)
	if stored, err := writeside.Of(p.Loader).StoreHeld(t.Context(), h, 1, "new"); stored ||
		!errors.Is(err, cacheaside.ErrRedis) {
		t.Error(stored, err)
	}
	noError(t, h.Invalidate(t.Context()))
	if b.onHold(t, 1, false); b.holds(t, 1) != 0 {
		t.Error("the hold is not removed")
	}
	p.want(t, 1, "new", nil)
}

// A reply that takes longer than a hold's life says nothing about the present.
func TestLateHoldReplyIsIgnored(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		o := strict
		o.LeaseTTL = time.Second
		rdb := b.client(t)
		late := &delayedReplies{after: o.LeaseTTL + 100*time.Millisecond}
		rdb.AddHook(late)
		p := startOn(t, rdb, newTable(map[int]string{1: "old"}), o, nil)
		p.want(t, 1, "old", nil)
		h := p.hold(t, 1)
		noError(t, h.Check(t.Context())) // loads the script, so that it is sent once
		late.on.Store(true)
		if err := h.Check(t.Context()); !errors.Is(err, cacheaside.ErrHoldLost) {
			t.Error(err)
		}
		late.on.Store(false)
		noError(t, h.Invalidate(t.Context()))
		b.onHold(t, 1, false)
	})
}

type delayedReplies struct {
	on    atomic.Bool
	after time.Duration
}

func (*delayedReplies) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*delayedReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (l *delayedReplies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if l.on.Load() {
			time.Sleep(l.after)
		}
		return err
	}
}

// splitting is a hook that sends a pipeline in two parts and runs a function in between.
type splitting struct {
	at      int
	between func()
}

func (s *splitting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *splitting) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *splitting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if s.between == nil || s.at >= len(cmds) {
			return next(ctx, cmds)
		}
		between := s.between
		s.between = nil
		err := next(ctx, cmds[:s.at])
		between()
		return errors.Join(err, next(ctx, cmds[s.at:]))
	}
}

// A writer is followed by another one whose value readers have seen. The first writer's value is
// not stored any more, at any step of the second.
func TestOlderWriterDoesNotStore(t *testing.T) {
	b := realBackend(t)
	d := newTable(map[int]string{})
	step := &splitting{}
	rdb := b.client(t)
	rdb.AddHook(step)
	p, q, reader := start(t, b, d, strict, nil), startOn(t, rdb, d, strict, nil), start(t, b, d, strict, nil)
	q.want(t, 1, "", cacheaside.ErrNotFound)
	noError(t, q.hold(t, 1).Invalidate(t.Context())) // the scripts are known from now on
	for at := range 4 {
		inUse(t, b, time.Hour)
		d.write(1, "old")
		p.want(t, 1, "old", nil)
		newer := q.hold(t, 1)
		older := p.hold(t, 1)
		d.write(1, "older")
		d.write(1, "newer")
		reader.want(t, 1, "newer", nil)
		split := false
		step.at, step.between = at, func() {
			split = true
			p.storeHeld(t, older, 1, "older", false)
			reader.want(t, 1, "newer", nil)
		}
		if at == 0 {
			step.between()
			step.between = nil
		}
		noError(t, newer.Invalidate(t.Context()))
		reader.want(t, 1, "newer", nil)
		noError(t, older.Invalidate(t.Context()))
		reader.want(t, 1, "newer", nil)
		b.onHold(t, 1, false)
		if step.between = nil; split != (at < 3) {
			t.Errorf("split before command %d: %v", at, split)
		}
	}
}
