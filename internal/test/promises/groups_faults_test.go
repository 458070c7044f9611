//go:build accept

package promises

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestHistoryOfGroupsUnderFaults is TestHistoryOfGroups on a Redis that is emptied, in part or as a
// whole, killed, suspended and cut off.
func TestHistoryOfGroupsUnderFaults(t *testing.T) {
	processes, length, seeds := 2, 3*time.Second, 1
	if accepting {
		processes, length, seeds = 8, 20*time.Second, 5
	}
	for seed := range seeds {
		cache := testenv.StartRedis(t)
		done := make(chan struct{})
		stop := time.AfterFunc(length, func() { close(done) })
		ended := later(func() (int, error) { return breakGroups(t, cache, seed, done), nil })
		history, sum := watchHistory(t, "groups-history", cache, processes, length, seed, "FAULTS=yes")
		if stop.Stop() {
			close(done)
		}
		faults, _ := ended(t)
		t.Logf("seed %d: %d faults", seed, faults)
		checkGroups(t, seed, history, sum)
		if faults < 5 {
			t.Errorf("seed %d: too few faults for a verdict", seed)
		}
	}
}

// breakGroups injects one fault after another until done is closed. It returns their number.
func breakGroups(t *testing.T, server *testenv.Redis, seed int, done <-chan struct{}) (n int) {
	ctx, rdb, r := t.Context(), server.Client(t), rand.New(rand.NewPCG(uint64(seed), 1))
	some := func() time.Duration { return 50*time.Millisecond + time.Duration(r.IntN(300))*time.Millisecond }
	faults := []func(){
		func() { deleteSome(ctx, rdb, "*", func() bool { return r.IntN(2) == 0 }) },
		func() { rdb.Del(ctx, groupsKey()) },
		func() { rdb.FlushAll(ctx) },
		func() { rdb.ClientKillByFilter(ctx, "type", "pubsub") },
		func() { rdb.ClientKillByFilter(ctx, "type", "normal", "skipme", "yes") },
		func() { server.Pause(); time.Sleep(some()); server.Resume() },
		func() { server.Kill(); time.Sleep(some()); server.Restart(t) },
	}
	for {
		for _, i := range r.Perm(len(faults)) {
			select {
			case <-done:
				return n
			case <-time.After(some()):
			}
			faults[i]()
			n++
		}
	}
}

// deleteSome deletes those keys that match a pattern and that chosen selects.
func deleteSome(ctx context.Context, rdb *redis.Client, pattern string, chosen func() bool) {
	names, _ := rdb.Keys(ctx, pattern).Result()
	for _, name := range names {
		if chosen() {
			rdb.Del(ctx, name)
		}
	}
}
