package lease

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestHitIsOneCommand(t *testing.T) {
	r := testenv.SharedRedis(t)
	b := newBackend(t, r.Client(t))
	b.put("k", Entry{Codec: 4, Payload: []byte("v")}, long)
	before := r.CommandCalls(t)
	for range 10 {
		b.payload("k", "v")
	}
	after := r.CommandCalls(t)
	for name, n := range after {
		want := before[name]
		if name == "getrange" {
			want += 10
		}
		if n != want {
			t.Errorf("%s was called %d times, want %d", name, n, want)
		}
	}
}

// The commands that an access list has to allow.
func TestProtocolUsesFewCommands(t *testing.T) {
	r := testenv.SharedRedis(t)
	b := newBackend(t, r.Client(t))
	b.put("k", Entry{Codec: 4, Payload: []byte("v")}, 15*time.Second)
	for _, end := range []func(single){
		b.release,
		func(a single) { b.fail(a, long) },
		func(a single) { b.fill(a, Entry{}, 15*time.Second, true) },
	} {
		a := b.attempt("k")
		b.read(a, Stored)
		b.claim(a, Mine)
		b.renew(a, true)
		b.claim(b.attempt("k"), Busy)
		end(a)
	}
	b.delete("k", "other")
	for _, end := range []func(single){b.release, func(a single) { b.fail(a, long) }} {
		a := b.attempt("k")
		b.take(a, Mine)
		b.renew(a, true)
		end(a)
	}
	b.claim(b.attempt("k"), Mine)
	b.delete("k")

	want := []string{"del", "eval", "evalsha", "getrange", "pexpire", "pttl", "set", "setrange", "time"}
	got := slices.Sorted(maps.Keys(r.CommandCalls(t)))
	t.Log(strings.Join(got, " "))
	if !slices.Equal(got, want) {
		t.Errorf("the commands are %v, want %v", got, want)
	}
}
