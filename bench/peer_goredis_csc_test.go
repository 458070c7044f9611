package bench

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The client answers repeated reads from memory until any client writes the key.
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
	for range 2 { // the row is loaded, and read from Redis
		read()
		settle(t, server.Addr)
	}
	gets := server.CommandCalls(t)["get"]
	for range 10 {
		read()
	}
	if n := server.CommandCalls(t)["get"]; n != gets {
		t.Errorf("10 reads of a row in memory were %d GETs", n-gets)
	}
	batch := c.(Batcher)
	for range 2 {
		if rows, err := batch.GetMany(t.Context(), []string{"a", "b"}); err != nil || len(rows) != 2 {
			t.Fatal(rows, err)
		}
		settle(t, server.Addr)
	}
	gets = server.CommandCalls(t)["mget"]
	for range 10 {
		if rows, err := batch.GetMany(t.Context(), []string{"a", "b"}); err != nil || len(rows) != 2 {
			t.Fatal(rows, err)
		}
	}
	if n := server.CommandCalls(t)["mget"]; n != gets {
		t.Errorf("10 batches of rows in memory were %d MGETs", n-gets)
	}
	if err := server.Client(t).Set(t.Context(), "tracked:a", `{"Name":"new"}`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(30 * time.Second); read().Name != "new"; settle(t, server.Addr) {
		if time.Now().After(limit) {
			t.Fatal("a write by another client has not reached the memory")
		}
	}
}
