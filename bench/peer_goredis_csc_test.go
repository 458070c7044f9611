package bench

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The client serves repeated reads from memory until a client writes the key.
func TestClientSide(t *testing.T) {
	server := testenv.SharedRedis(t)
	db := newDatabase("a", "b")
	peer, _ := peerNamed("go-redis client-side")
	c := open(t, peer, Config{Redis: server.Addr, Patient: true, TTL: time.Minute, Load: db.load})
	read := func() *Row {
		r, err := c.Get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	inMemory := func(command string, read func()) {
		t.Helper()
		// The notification of its own SET arrives later.
		for limit := time.Now().Add(30 * time.Second); ; settle(t, server.Addr) {
			before := server.CommandCalls(t)[command]
			for range 10 {
				read()
			}
			if server.CommandCalls(t)[command] == before {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("10 reads of rows in memory have sent %s", command)
			}
		}
	}
	inMemory("get", func() { read() })
	inMemory("mget", func() {
		if rows, err := c.(Batcher).GetMany(t.Context(), []string{"a", "b"}); err != nil || len(rows) != 2 {
			t.Fatal(rows, err)
		}
	})
	if err := server.Client(t).Set(t.Context(), "tracked:a", `{"Name":"new"}`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(30 * time.Second); read().Name != "new"; settle(t, server.Addr) {
		if time.Now().After(limit) {
			t.Fatal("memory still has the old row after a write by another client")
		}
	}
}
