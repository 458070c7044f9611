//go:build accept

package bench

import (
	"errors"
	"testing"
	"time"

	"ariga.io/entcache"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// entcache stores the columns of a row and caches an empty result. A process that has found a row
// in Redis reads it there again each time.
func TestEntcache(t *testing.T) {
	server := testenv.SharedRedis(t)
	db := newDatabase("a")
	peer, _ := peerNamed("entcache")
	config := Config{Redis: server.Addr, TTL: time.Minute, Load: db.load}
	one, two := open(t, peer, config), open(t, peer, config)
	reads := func(c Cache, key string) (gets int) {
		before := server.CommandCalls(t)["get"]
		for range 5 {
			if _, err := c.Get(t.Context(), key); err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
		}
		return server.CommandCalls(t)["get"] - before
	}
	for _, key := range []string{"a", "none"} {
		if n := reads(one, key); n != 1 {
			t.Errorf("%s: the process that loaded it reads from Redis %d times, want 1", key, n)
		}
		if n := reads(two, key); n != 5 {
			t.Errorf("%s: another process reads from Redis %d times, want 5", key, n)
		}
		if n := db.count(key); n != 1 {
			t.Errorf("%s: %d loads", key, n)
		}
	}
	b, err := server.Client(t).Get(t.Context(), "ent:a").Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var entry entcache.Entry
	if err := entry.UnmarshalBinary(b); err != nil || len(entry.Columns) != 4 || len(entry.Values) != 1 ||
		entry.Values[0][2] != text200 {
		t.Errorf("in Redis: %v, %v", entry, err)
	}
}
