package invalidation

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// badHook does to polls, and to announcements that are sent alone, what a hook must not.
type badHook struct{ do func() }

func (badHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b badHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" || cmd.Name() == "eval" {
			b.do()
		}
		return next(ctx, cmd)
	}
}

func (b badHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if isPoll(cmds) {
			b.do()
		}
		return next(ctx, cmds)
	}
}

// isPoll reports whether the commands of a pipeline are a poll.
func isPoll(cmds []redis.Cmder) bool {
	return slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Name() == "hmget" })
}

// With any hook of the client, an announcement that was not sent is not reported as sent.
func TestHooksThatDoNotReturn(t *testing.T) {
	for name, do := range map[string]func(){"panic": func() { panic("hook") }, "Goexit": runtime.Goexit} {
		cluster := testenv.SharedCluster(t)
		o := cluster.Options()
		o.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
			// the announcements' keys seem to be elsewhere
			var slots []redis.ClusterSlot
			for i := range 64 {
				slots = append(slots, redis.ClusterSlot{Start: i * 256, End: i*256 + 255,
					Nodes: []redis.ClusterNode{{Addr: cluster.Addrs[i%3]}}})
			}
			return slots, nil
		}
		rdb := redis.NewClusterClient(o)
		rdb.AddHook(badHook{do})
		b := newBackend(t, rdb)
		c := b.writer()
		for _, n := range []int{1, 20, 200} {
			keys, hashes := many(n)
			told := 0
			for _, err := range c.Delete(t.Context(), keys, hashes) {
				if err == nil {
					told++
				}
			}
			if told > 0 {
				t.Errorf("%s: %d of %d are reported as announced", name, told, n)
			}
			if s := c.Stats(); s.Announced > 0 {
				t.Errorf("%+v", s)
			}
		}
		if err := c.DeleteLoader(t.Context(), "users"); err == nil {
			t.Errorf("%s: a loader is said to be deleted", name)
		}
		rdb.Close()
	}
}

// A poller outlives it: without polls nothing is confirmed, and a caller that reads would wait.
func TestPollsGoOnAfterAHookThatDoesNotReturn(t *testing.T) {
	for name, do := range map[string]func(){"panic": func() { panic("hook") }, "Goexit": runtime.Goexit} {
		for _, bounded := range []bool{false, true} {
			_, mini := testenv.Mini(t)
			o := *mini.Options()
			o.ContextTimeoutEnabled = bounded
			rdb := redis.NewClient(&o)
			defer rdb.Close()
			var bad atomic.Bool
			rdb.AddHook(badHook{func() {
				if bad.Load() {
					do()
				}
			}})
			c := open(t, rdb, timeout, bound, nil)
			for range 3 {
				for _, is := range []bool{false, true} {
					bad.Store(is)
					ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
					if err := c.Confirm(ctx, 0); (err != nil) != is || ctx.Err() != nil {
						t.Errorf("%s, %v: %v, bad: %v", name, bounded, err, is)
					}
					cancel()
				}
			}
		}
	}
}
