package lease

import (
	"github.com/cacheaside/cacheaside/internal/conn"
	"testing"
	"time"
)

func TestTakeGivesTheLeaseOfAnAbsentKey(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.read(a, Absent)
		b.take(a, Mine)
		b.life("k", long)
	})
}

func TestTakeReturnsTheContentOfTheKey(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		first, second := b.attempt("k"), b.attempt("k")
		b.take(first, Mine)
		if s := b.take(second, Busy); s.Token != first.token {
			t.Errorf("the lease has the token %v, want %v", s.Token, first.token)
		}
		b.read(second, Busy)
		b.fill(first, Entry{Codec: 4, Payload: []byte("v")}, long, true)

		b.take(b.attempt("failed"), Mine)
		b.delete("failed")
		failing := b.attempt("failed")
		b.take(failing, Mine)
		b.fail(failing, long)
		b.take(b.attempt("failed"), Failed)

		b.check(b.rdb.Set(b.ctx, "unknown", "?", 0).Err())
		if s := b.take(b.attempt("unknown"), Unknown); string(s.Raw) != "?" {
			t.Errorf("the unknown bytes are %q", s.Raw)
		}
	})
}

func TestTakeReturnsAnEntryStoredInBetween(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		late := b.attempt("k")
		b.read(late, Absent)
		b.put("k", Entry{Codec: 4, Payload: []byte("v")}, long)
		if s := b.take(late, Stored); string(s.Entry.Payload) != "v" {
			t.Errorf("the entry is %q", s.Entry.Payload)
		}
	})
}

func TestUnreadableBytesAreReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		// An entry may also be unreadable to the caller, by its payload.
		entry := string(appendEntry(nil, Entry{Codec: 4, Payload: []byte("?")}))
		for _, bytes := range []string{"", "?", "\xe2", "\xe1short", entry} {
			b.check(b.rdb.Set(b.ctx, "k", bytes, 0).Err())
			a := b.attempt("k")
			s, err := a.Read(b.ctx)
			b.check(err)
			want := Unknown
			switch bytes {
			case "": // as good as nothing
				want = Absent
			case entry:
				want = Stored
			}
			wantKind(t, bytes, s, err, want)
			s, err = a.Take(b.ctx, s.Raw)
			wantKind(t, "take", s, err, Mine)
			b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
			b.payload("k", "v")
		}
	})
}

func TestUnreadableBytesAreReplacedOnlyIfUnchanged(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.check(b.rdb.Set(b.ctx, "k", "old", 0).Err())
		late := b.attempt("k")
		raw := b.read(late, Unknown).Raw

		b.check(b.rdb.Set(b.ctx, "k", "new", 0).Err())
		s, err := late.Take(b.ctx, raw)
		if wantKind(t, "take", s, err, Unknown); string(s.Raw) != "new" {
			t.Errorf("the bytes are %q", s.Raw)
		}

		b.delete("k")
		b.put("k", Entry{Codec: 4, Payload: []byte("v")}, long)
		s, err = late.Take(b.ctx, raw)
		wantKind(t, "take", s, err, Stored)
		b.payload("k", "v")
	})
}

func TestDeleteVoidsALease(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.delete("k")
		b.read(a, Absent)
		b.renew(a, false)
		b.fill(a, Entry{}, long, false)
		b.read(a, Absent)
	})
}

func TestPlainDelVoidsALease(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.check(b.rdb.Del(b.ctx, "k").Err())
		b.fill(a, Entry{}, long, false)
		b.read(a, Absent)
	})
}

func TestDeleteOfManyKeys(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		var keys []string
		var attempts []single
		for i := range 40 { // on the cluster, in as many slots
			key := "k{" + string(rune('a'+i)) + "}"
			keys = append(keys, key)
			attempts = append(attempts, b.attempt(key))
			b.take(attempts[i], Mine)
		}
		b.delete(keys...)
		for i := range keys {
			b.fill(attempts[i], Entry{}, long, false)
			b.read(attempts[i], Absent)
		}
		b.delete(keys...) // nothing is there: that is no error
	})
}

func TestRenewKeepsALease(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.check(b.rdb.PExpire(b.ctx, "k", 20*time.Second).Err())
		b.renew(a, true)
		b.life("k", long)

		b.delete("k")
		b.take(b.attempt("k"), Mine)
		b.check(b.rdb.PExpire(b.ctx, "k", 20*time.Second).Err())
		b.renew(a, false) // the lease is another's
		b.life("k", 20*time.Second)
	})
}

func TestScriptsAreLoadedWhereRedisHasLostThem(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.flushScripts()
		b.take(a, Mine)
		b.flushScripts()
		b.renew(a, true)
		b.flushScripts()
		b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
		b.flushScripts()
		b.claim(a, Mine)
		b.flushScripts()
		b.release(a)
		b.payload("k", "v")
	})
}

func TestAnotherTypeUnderTheKeyIsAnError(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a := b.attempt("k")
		b.take(a, Mine)
		b.check(b.rdb.Del(b.ctx, "k").Err())
		b.check(b.rdb.RPush(b.ctx, "k", "x").Err())
		stored, fillErr := a.Fill(b.ctx, Entry{}, long)
		held, renewErr := a.Renewal().Renew(b.ctx)
		if stored || held {
			t.Errorf("stored %v, held %v", stored, held)
		}
		read, readErr := a.Read(b.ctx)
		take, takeErr := a.Take(b.ctx, nil)
		replace, replaceErr := a.Take(b.ctx, []byte("x"))
		claim, claimErr := a.Claim(b.ctx)
		for i, s := range []State{read, take, replace, claim} {
			if s.Kind == Mine || s.Kind == Stored {
				t.Errorf("state %d is of kind %d", i, s.Kind)
			}
		}
		for i, err := range []error{fillErr, renewErr, readErr, takeErr, replaceErr, claimErr, a.Fail(b.ctx, long)} {
			if err == nil || !conn.IsReply(err) {
				t.Errorf("command %d: %v", i, err)
			}
		}
		if n := b.rdb.LLen(b.ctx, "k").Val(); n != 1 {
			t.Errorf("the list has %d elements", n)
		}
		b.delete("k")
		b.take(a, Mine)
	})
}
