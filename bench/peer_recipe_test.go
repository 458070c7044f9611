package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The recipe stores a row as a hash with an expiry. One caller of all processes loads it.
func TestRecipe(t *testing.T) {
	server := testenv.SharedRedis(t)
	rdb := server.Client(t)
	// Otherwise some callers would send the script twice.
	if err := recipeTake.Load(t.Context(), rdb).Err(); err != nil {
		t.Fatal(err)
	}
	var loads atomic.Int64
	release := make(chan struct{})
	config := Config{Redis: server.Addr, Patient: true, TTL: time.Minute,
		Load: func(_ context.Context, key string) (*Row, error) {
			loads.Add(1)
			<-release
			return rowOf(key), nil
		}}
	peer, _ := peerNamed("redis.io recipe")
	const callers = 5
	var all sync.WaitGroup
	for range 2 { // processes
		c := open(t, peer, config)
		for range callers {
			all.Go(func() {
				if r, err := c.Get(t.Context(), "a"); err != nil || *r != *rowOf("a") {
					t.Errorf("got %v, %v", r, err)
				}
			})
		}
	}
	for server.CommandCalls(t)["evalsha"] < 2*callers { // until each caller has tried to lock
		time.Sleep(time.Millisecond)
	}
	close(release)
	all.Wait()
	if n := loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	fields := rdb.HGetAll(t.Context(), "recipe:a").Val()
	if len(fields) != 4 || fields["text"] != text200 || fields["price"] != "9.99" {
		t.Errorf("in Redis: %q", fields)
	}
	if ttl := rdb.PTTL(t.Context(), "recipe:a").Val(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("the row expires in %v", ttl)
	}
	if n := rdb.DBSize(t.Context()).Val(); n != 1 {
		t.Errorf("Redis has %d keys, want 1 without the lock", n)
	}
}
