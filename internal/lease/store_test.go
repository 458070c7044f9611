package lease

import (
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A renewal may still be under way when its load has ended, and the attempt continues with the next
// load.
func TestRenewMayRunDuringTheNextTake(t *testing.T) {
	_, rdb := testenv.Mini(t)
	b := newBackend(t, rdb)
	for range 100 {
		a := b.attempt("k")
		b.take(a, Mine)
		b.delete("k")
		var renewals sync.WaitGroup
		renewal := a.Renewal()
		renewals.Go(func() { renewal.Renew(b.ctx) })
		b.fill(a, Entry{}, long, false)
		b.take(a, Mine)
		renewals.Wait()
		b.fill(a, Entry{}, long, true)
		b.delete("k")
	}
}

func TestRedisOutOfMemoryIsAnError(t *testing.T) {
	r := testenv.StartRedis(t, "--maxmemory-policy", "noeviction")
	b := newBackend(t, r.Client(t))
	b.put("entry", Entry{Codec: 4, Payload: []byte("v")}, long)
	b.put("claimed", Entry{Codec: 4, Payload: []byte("v")}, long)
	leased, claimed := b.attempt("leased"), b.attempt("claimed")
	b.take(leased, Mine)
	b.claim(claimed, Mine)
	b.check(b.rdb.Set(b.ctx, "unknown", "?", 0).Err())
	before := b.rdb.Get(b.ctx, "entry").Val()

	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1mb").Err())
	for b.rdb.Append(b.ctx, "filler", strings.Repeat("x", 10000)).Err() == nil {
	}

	for name, f := range map[string]func() (State, error){
		"take":        func() (State, error) { return b.attempt("absent").Take(b.ctx, nil) },
		"claim":       func() (State, error) { return b.attempt("absent").Claim(b.ctx) },
		"claim entry": func() (State, error) { return b.attempt("entry").Claim(b.ctx) },
		"take, no key": func() (State, error) {
			return b.attempt("filler").Take(b.ctx, []byte(b.rdb.Get(b.ctx, "filler").Val()))
		},
	} {
		if s, err := f(); err == nil || s.Kind == Mine || !redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("%s: kind %d, %v", name, s.Kind, err)
		}
	}
	for name, a := range map[string]single{"lease": leased, "claim": claimed} {
		if stored, err := a.Fill(b.ctx, Entry{Codec: 4, Payload: []byte("new")}, long); stored ||
			!redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("fill of a %s: %v, %v", name, stored, err)
		}
	}
	if b.rdb.Get(b.ctx, "entry").Val() != before {
		t.Error("the entry has changed")
	}
	b.read(b.attempt("absent"), Absent)
	b.payload("claimed", "v")
	b.release(leased) // frees memory, so it is allowed
	b.delete("claimed", "filler")
	b.read(b.attempt("leased"), Absent)
	b.read(b.attempt("claimed"), Absent)

	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "0").Err())
	b.put("absent", Entry{Codec: 4, Payload: []byte("v")}, long)
	b.payload("absent", "v")
}
