package invalidation

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const overshoot = 150 * time.Millisecond // what a machine may add on which figures are measured

// hanging is a server of its own that all kinds of client can use; stop stops it.
func hanging(t *testing.T) (addr string, stop func() (resume func())) {
	t.Helper()
	r := testenv.StartRedis(t, "--cluster-enabled", "yes", "--cluster-port", "0", "--cluster-config-file", "nodes.conf")
	rdb := r.Client(t)
	if err := rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a cluster", func() bool { return rdb.Get(t.Context(), "k").Err() == redis.Nil })
	t.Cleanup(r.Resume)
	return r.Addr, func() func() {
		r.Pause()
		return r.Resume
	}
}

// clients have their own default settings, except for a time-out that must not end the commands
// before the channel does.
func clients(addr string) map[string]redis.UniversalClient {
	return map[string]redis.UniversalClient{
		"client":                         redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Hour}),
		"client with context time-outs":  redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: time.Hour}),
		"cluster":                        redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ReadTimeout: time.Hour}),
		"cluster with context time-outs": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: true, ReadTimeout: time.Hour}),
	}
}

func TestDeleteEndsInTimeWhenRedisHangs(t *testing.T) {
	addr, stop := hanging(t)
	type client struct {
		step             string
		patient, limited *Bus // whose commands may take very long, and almost no time
	}
	var all []client
	for _, pool := range []string{"warm", "cold"} {
		for kind, rdb := range clients(addr) {
			defer rdb.Close()
			c := client{kind + ", " + pool, open(t, rdb, time.Hour, bound, nil),
				open(t, rdb, 50*time.Millisecond, bound, nil)}
			if pool == "warm" {
				if errs := c.patient.Delete(t.Context(), []string{"k"}, []uint64{1}); errs[0] != nil {
					t.Fatal(errs)
				}
			}
			all = append(all, c)
		}
	}
	resume := stop()
	t.Cleanup(resume) // before the channels are closed, so that a delete that does not end does then
	for _, c := range all {
		for _, n := range []int{1, 3} {
			endsInTime(t, c.step, c.patient, c.limited, n)
		}
	}
}

// endsInTime deletes n keys through a Redis that does not reply.
func endsInTime(t *testing.T, step string, patient, c *Bus, n int) {
	t.Helper()
	keys, hashes := many(n)
	failed := func(errs []error) {
		if len(errs) != n || slices.Contains(errs, nil) {
			t.Errorf("%s: %v for %d keys", step, errs, n)
		}
	}
	var late []time.Duration
	for range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		var cancelled time.Time
		time.AfterFunc(10*time.Millisecond, func() {
			cancelled = time.Now()
			cancel()
		})
		origin := patient.origin.Load()
		ended := make(chan []error, 1)
		go func() { ended <- patient.Delete(ctx, keys, hashes) }()
		failed(testenv.Receive(t, step+": the end of a delete that was cancelled", ended))
		late = append(late, time.Since(cancelled))
		if patient.origin.Load() == origin {
			t.Errorf("%s: a late announcement would be taken for its own", step)
		}
	}
	if testenv.Accepting && slices.Min(late) > 30*time.Millisecond {
		t.Errorf("%s: it ended %v after its context", step, late)
	}
	if n > 1 {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.DeleteLoader(ctx, "users"); err == nil {
		t.Errorf("%s: a loader is said to be deleted", step)
	}
	begin := time.Now()
	failed(c.Delete(context.WithoutCancel(t.Context()), keys, hashes))
	if took := time.Since(begin); testenv.Accepting && took > maxTimeouts*c.conn.Timeout()+overshoot {
		t.Errorf("%s: without a deadline it took %v", step, took)
	}
}
