package redislock

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestManyChannels: a process can wait for more locks than a command may have arguments, also
// when it has lost its connections.
func TestManyChannels(t *testing.T) {
	s := testenv.SharedServerless(t)
	rdb := s.Client(t)
	c, err := conn.New(rdb, testenv.Hang)
	if err != nil {
		t.Fatal(err)
	}
	w := NewWakes(rdb, c)
	defer c.Close()
	defer w.Close()
	wakes := make([]*Wake, 5000)
	for i := range wakes {
		wakes[i] = w.Watch("lock:{" + strconv.Itoa(i) + "}")
		defer wakes[i].Leave()
	}
	woken := func(when string) {
		t.Helper()
		limit := time.After(testenv.Hang)
		for i, k := range wakes {
			select {
			case <-k.C:
			case <-limit:
				t.Fatalf("%s: channel %d of %d is not subscribed to", when, i, len(wakes))
			}
		}
	}
	woken("at first")
	err = s.AdminClient(t).ForEachMaster(t.Context(), func(ctx context.Context, r *redis.Client) error {
		return r.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	woken("after a reconnect")
}
