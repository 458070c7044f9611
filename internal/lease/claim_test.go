package lease

import (
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"testing"
	"time"
)

func TestClaimOfAKeyWithoutAnEntryIsALease(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		failing := b.attempt("failed")
		b.take(failing, Mine)
		b.fail(failing, long)
		b.check(b.rdb.Set(b.ctx, "unknown", "?", 0).Err())
		b.check(b.rdb.Set(b.ctx, "short", "\xe1short", 0).Err())
		for _, key := range []string{"absent", "failed", "unknown", "short"} {
			a := b.attempt(key)
			b.claim(a, Mine)
			b.read(b.attempt(key), Busy)
			b.life(key, long)
			b.claim(b.attempt(key), Busy)
			b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
			b.payload(key, "v")
		}
	})
}

func TestClaimOfALeaseIsBusy(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		if s := b.claim(b.attempt("k"), Busy); s.Token != a.token {
			t.Errorf("the lease has the token %v, want %v", s.Token, a.token)
		}
		b.fill(a, Entry{}, long, true)
	})
}

func TestClaimedEntryCanStillBeRead(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		want := Entry{Codec: 3, Cost: time.Millisecond, Expiry: time.UnixMilli(1 << 42), Payload: []byte("old")}
		b.put("k", want, long)
		a := b.attempt("k")
		b.claim(a, Mine)
		got := b.payload("k", "old").Entry
		if !got.Claimed || got.Stamp != a.token || got.Codec != want.Codec || !got.Expiry.Equal(want.Expiry) {
			t.Errorf("the claimed entry is %+v", got)
		}
		if s := b.take(b.attempt("k"), Stored); string(s.Entry.Payload) != "old" {
			t.Errorf("take: %q", s.Entry.Payload)
		}
		b.fill(a, Entry{Codec: 4, Payload: []byte("new")}, 30*time.Second, true)
		if s := b.payload("k", "new"); s.Entry.Claimed {
			t.Error("the new entry is claimed")
		}
		b.life("k", 30*time.Second)
	})
}

func TestClaimIsGivenOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.put("k", Entry{Codec: 4, Payload: []byte("old")}, long)
		a := b.attempt("k")
		b.claim(a, Mine)
		b.claim(b.attempt("k"), Busy)
		b.renew(a, true)
		b.claim(b.attempt("k"), Busy)
		b.fill(a, Entry{Codec: 4, Payload: []byte("new")}, long, true)
		b.payload("k", "new")
	})
}

// If the entry expired during its refresh, a reader would acquire a lease, and load at the same
// time.
func TestClaimedEntryOutlivesItsClaim(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.put("k", Entry{Codec: 4, Payload: []byte("old")}, 15*time.Second)
		a := b.attempt("k")
		b.claim(a, Mine)
		b.life("k", long)
		end := b.claimEnd("k")
		if d := end.Sub(b.rdb.Time(b.ctx).Val()); d > long || d < long-10*time.Second {
			t.Errorf("the claim ends in %v, want %v", d, long)
		}

		// A longer life stays as it is.
		b.put("longer", Entry{}, time.Hour)
		b.claim(b.attempt("longer"), Mine)
		b.life("longer", time.Hour)
	})
}

func TestFillIsRefusedWhenTheClaimIsAnothers(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.put("k", Entry{Codec: 4, Payload: []byte("old")}, long)
		stale, fresh := b.store.Attempt("k", short), b.attempt("k")
		b.claim(stale, Mine)
		b.over(b.claimEnd("k"))
		b.claim(fresh, Mine)
		b.renew(stale, false)
		b.fill(stale, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.fail(stale, long)
		if s := b.payload("k", "old"); !s.Entry.Claimed {
			t.Error("the claim has gone")
		}
		b.fill(fresh, Entry{Codec: 4, Payload: []byte("fresh")}, long, true)
		b.fill(stale, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		b.payload("k", "fresh")
	})
}

func TestFillAfterTheClaimEndedButWasNotTakenOver(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.put("k", Entry{Codec: 4, Payload: []byte("old")}, long)
		a := b.store.Attempt("k", short)
		b.claim(a, Mine)
		b.over(b.claimEnd("k"))
		b.fill(a, Entry{Codec: 4, Payload: []byte("new")}, long, true) // nothing has come between
		b.payload("k", "new")
	})
}

func TestDeleteVoidsAClaim(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		for name, again := range map[string]func(key string){
			"absent": func(key string) {},
			"leased": func(key string) { b.take(b.attempt(key), Mine) },
			"stored": func(key string) { b.put(key, Entry{Codec: 4, Payload: []byte("fresh")}, long) },
			"claimed": func(key string) {
				b.put(key, Entry{Codec: 4, Payload: []byte("fresh")}, long)
				b.claim(b.attempt(key), Mine)
			},
		} {
			b.put(name, Entry{Codec: 4, Payload: []byte("old")}, long)
			a := b.attempt(name)
			b.claim(a, Mine)
			b.delete(name)
			again(name)
			before, _ := b.rdb.Get(b.ctx, name).Result()
			b.renew(a, false)
			b.fill(a, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
			b.release(a)
			if after, _ := b.rdb.Get(b.ctx, name).Result(); after != before {
				t.Errorf("%s: the key held %q, now %q", name, before, after)
			}
		}
	})
}

func TestRenewKeepsAClaim(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.put("k", Entry{Codec: 4, Payload: []byte("old")}, long)
		a := b.store.Attempt("k", 20*time.Second)
		b.claim(a, Mine)
		before := b.claimEnd("k")
		b.over(before.Add(-20*time.Second + 5*time.Millisecond)) // the clock has moved on
		b.check(b.rdb.PExpire(b.ctx, "k", 15*time.Second).Err())
		b.renew(a, true)
		s := b.payload("k", "old")
		if !b.claimEnd("k").After(before) || !s.Entry.Claimed || s.Entry.Stamp != a.token {
			t.Errorf("the claim ended at %v, now: %+v", before, s.Entry)
		}
		if d := b.rdb.PTTL(b.ctx, "k").Val(); d <= 15*time.Second || d > 20*time.Second {
			t.Errorf("the entry lives for %v", d)
		}
		b.fill(a, Entry{}, long, true)
		b.renew(a, false) // the claim has ended with the fill
	})
}

func TestEndOfAClaimRestoresTheEntry(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		{
			const name = "k"
			want := Entry{
				Null: true, Codec: 5, Cost: time.Second, Payload: []byte("old"),
				Expiry: time.UnixMilli(time.Now().Add(30 * time.Second).UnixMilli()),
			}
			b.put(name, want, 30*time.Second)
			a := b.attempt(name)
			b.claim(a, Mine)
			b.life(name, long)
			b.renew(a, true)
			b.release(a)
			b.life(name, 30*time.Second)
			want.Stamp = a.token
			sameEntry(t, b.payload(name, "old").Entry, want)
			b.claim(b.attempt(name), Mine)
		}

		// A key that was to stay for ever does.
		b.put("persistent", Entry{Codec: 4, Payload: []byte("old")}, long)
		b.check(b.rdb.Persist(b.ctx, "persistent").Err())
		a := b.attempt("persistent")
		b.claim(a, Mine)
		b.release(a)
		if d := b.rdb.PTTL(b.ctx, "persistent").Val(); d != -1 {
			t.Errorf("the key lives for %v", d)
		}
	})
}

func TestEndOfAClaimDeletesAnEntryWhoseLifeIsOver(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		const life = 300 * time.Millisecond // the claims must come before its end
		failing, releasing := b.attempt("failing"), b.attempt("releasing")
		for _, a := range []single{failing, releasing} {
			b.put(a.key, Entry{Codec: 4, Payload: []byte("old")}, life)
			b.claim(a, Mine)
			if a.owns != ownsClaim {
				t.Fatal("the entry has expired before its claim")
			}
		}
		b.over(b.rdb.Time(b.ctx).Val().Add(life))
		b.payload("failing", "old")
		b.payload("releasing", "old")
		b.fail(failing, time.Hour)
		b.release(releasing)
		b.read(b.attempt("failing"), Failed)
		b.read(b.attempt("releasing"), Absent)
	})
}

// What is known of the entry that was claimed is not put back into another one, which a delayed
// request of the same attempt claims.
func TestEndOfADelayedClaimLeavesAnotherEntrysLife(t *testing.T) {
	_, rdb := testenv.Mini(t)
	b := newBackend(t, rdb)
	b.put("k", Entry{Codec: 4, Payload: []byte("first")}, time.Hour)
	a := b.attempt("k")
	a.life = 2 * time.Second
	lost := newToken()
	a.sent = append(a.sent, lost) // asked for first: no reply, and still on its way
	b.claim(a, Mine)
	b.delete("k")
	b.put("k", Entry{Codec: 4, Payload: []byte("second")}, 5*time.Second)
	if err := b.rdb.Eval(b.ctx, claimScript.Source, []string{a.key}, appendLease(nil, lost), lost[:],
		a.life.Milliseconds(), "").Err(); err != nil {
		// it arrives
		t.Fatal(err)
	}
	b.release(a)
	if left := b.rdb.PTTL(b.ctx, a.key).Val(); left <= 0 || left > 6*time.Second {
		t.Errorf("an entry stored for 5 s has %v left", left)
	}
}

// After a failed reload, reads of the entry do not try again for a while. An explicit reload does.
func TestAFailedRefreshKeepsOthersFromTrying(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		want := Entry{Codec: 5, Cost: time.Second, Payload: []byte("old"),
			Expiry: time.UnixMilli(time.Now().UnixMilli())}
		b.put("k", want, 30*time.Second)
		explicit := b.attempt("k")
		b.claim(explicit, Mine)
		b.fail(explicit, time.Minute)
		b.life("k", 30*time.Second)
		s := b.payload("k", "old")
		want.Stamp, want.Claimed, want.Cost = Token{}, true, 0
		sameEntry(t, s.Entry, want)
		if !s.Entry.Taken(b.rdb.Time(b.ctx).Val()) {
			t.Error("it is not taken")
		}
		read := b.attempt("k")
		read.For(s.Entry.Stamp)
		b.claim(read, Busy)

		explicit = b.attempt("k")
		b.claim(explicit, Mine)
		b.fail(explicit, 100*time.Millisecond)
		b.over(b.claimEnd("k"))
		if s := b.payload("k", "old"); s.Entry.Taken(b.rdb.Time(b.ctx).Val()) {
			t.Error("it is taken after ErrorTTL")
		}
		b.claim(read, Mine)
	})
}

// A process that has read an entry, and comes late, does not load what has been loaded since.
func TestOnlyTheEntryThatWasReadIsClaimed(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		stamped := func() single {
			s := b.payload("k", "old")
			a := b.attempt("k")
			a.For(s.Entry.Stamp)
			return a
		}
		b.put("k", Entry{Codec: 4, Payload: []byte("old")}, long)
		early, late := stamped(), stamped()
		b.claim(early, Mine)
		b.claim(late, Busy)
		b.fill(early, Entry{Codec: 4, Payload: []byte("new")}, long, true)
		b.claim(late, Unknown)
		b.payload("k", "new")
		b.delete("k")
		b.claim(late, Unknown)
		b.read(b.attempt("k"), Absent)
		b.take(b.attempt("k"), Mine)
		b.claim(late, Busy)

		// A claim whose holder has died is one that can be read, too.
		b.delete("k")
		b.put("k", Entry{Codec: 4, Payload: []byte("old")}, long)
		dead := b.store.Attempt("k", short)
		b.claim(dead, Mine)
		b.over(b.claimEnd("k"))
		b.claim(stamped(), Mine)
	})
}

func TestTaken(t *testing.T) {
	now := time.UnixMilli(1<<40 + 5)
	for left, want := range map[time.Duration]bool{
		0: false, -time.Millisecond: false, time.Millisecond: true, time.Hour: true,
		time.Hour + time.Millisecond: false, -time.Hour: false,
	} {
		e := Entry{Claimed: true, ClaimEnds: uint32(now.Add(left).UnixMilli())}
		if got := e.Taken(now); got != want {
			t.Errorf("%v before its end: %v", left, got)
		}
	}
	if (&Entry{ClaimEnds: uint32(now.UnixMilli() + 1)}).Taken(now) {
		t.Error("it is not claimed")
	}
}
