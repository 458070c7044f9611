package redlock_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// TestRedlockHistory makes one or two nodes hang, disconnects or stops them, drops their replies
// and delays their requests. It kills nodes, also a majority, and restarts them without data after
// all earlier locks have ended. It also suspends processes.
func TestRedlockHistory(t *testing.T) {
	nodes := testenv.FiveMasters(t)
	seeds, length := locktest.Seeds()
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	for _, seed := range seeds {
		var proxies [][]*testenv.Proxy // of the nodes, by locker
		locktest.Faults{
			Stopped: []string{"LOCK_REDLOCK=" + strings.Join(addrs, ",")},
			Locker: func(t testing.TB, o *lock.Options) *lock.Locker {
				own := make([]*testenv.Proxy, len(nodes))
				var clients []*redis.Client
				for i, n := range nodes {
					own[i] = testenv.NewProxy(t, n.Addr)
					c := n.Options()
					c.Addr, c.DialTimeout, c.ContextTimeoutEnabled =
						own[i].Addr, 200*time.Millisecond, len(proxies)%2 == 0
					clients = append(clients, locktest.ClientWith(t, c))
				}
				proxies = append(proxies, own)
				return locktest.Closed(t)(redlock.New(clients, o))
			},
			Disturb: func(ctx context.Context, r *rand.Rand, ttl time.Duration) string {
				own := proxies[r.IntN(len(proxies))]
				which := r.Perm(len(nodes))
				some := which[:2]
				for_ := locktest.UpTo(r, 600*time.Millisecond)
				var what string
				var on, off func(int)
				switch r.IntN(6) {
				case 0:
					what, on, off = "hang", func(i int) { own[i].Hang(true) }, func(i int) { own[i].Hang(false) }
				case 1:
					what, on, off = "reset", func(i int) { own[i].Cut() }, func(i int) { own[i].Restore() }
				case 2:
					what, on, off = "replies lost, requests delayed", func(i int) {
						own[i].OnRequest(locktest.BadLine(r.Uint64(), 6))
					}, func(i int) { own[i].OnRequest(nil) }
				case 3:
					what, on, off = "stopped", func(i int) { nodes[i].Pause() }, func(i int) { nodes[i].Resume() }
				default:
					some, for_, what = which[:1], ttl+ttl/2, "one killed, and back without its data"
					if r.IntN(2) == 0 {
						some, what = which[:3], "a majority killed, and back without its data"
					}
					on, off = func(i int) { nodes[i].Kill() }, func(i int) { nodes[i].Restart(t) }
					ctx = context.WithoutCancel(ctx) // the node stays out for this time
				}
				for _, i := range some {
					on(i)
				}
				locktest.Sleep(ctx, for_)
				for _, i := range some {
					off(i)
				}
				return what
			},
		}.Run(t, seed, length)
	}
}
