package redlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// A lock can be acquired, extended and released although each request first meets connections that
// the servers have closed.
func TestIdleConnectionsClosed(t *testing.T) {
	var nodes, admins []*redis.Client
	for _, r := range testenv.FiveMasters(t) {
		o := r.Options()
		o.Dialer, o.PoolSize, o.MaxRetries, o.ContextTimeoutEnabled = testenv.Opaque, 128, -1, true
		nodes, admins = append(nodes, locktest.ClientWith(t, o)), append(admins, r.Client(t))
	}
	// Close waits for one timeout, because lost requests may still arrive.
	l := locktest.Closed(t)(redlock.New(nodes, &lock.Options{Timeout: 4 * time.Second, TTL: testenv.Hang}))
	for _, dead := range []int{2, 100} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			closeIdle := func() {
				for i, rdb := range nodes {
					testenv.FillPool(t, rdb, admins[i], dead)
					testenv.CloseIdle(t, admins[i])
				}
			}
			for range 2 { // the first time, the clocks of the servers are unknown
				closeIdle()
				lease, err := l.TryAcquire(t.Context(), "a", nil)
				locktest.Want(t, "acquire", err, nil)
				closeIdle()
				locktest.Want(t, "extend", lease.Extend(t.Context()), nil)
				closeIdle()
				locktest.Want(t, "release", lease.Release(), nil)
			}
		})
	}
}
