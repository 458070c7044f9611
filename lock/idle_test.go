package lock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// opaque returns a client of r whose connections go-redis cannot examine, and a function that makes
// the server close n of its idle connections.
func opaque(t *testing.T, r *testenv.Redis, retries int) (rdb *redis.Client, closeIdle func(n int)) {
	o := r.Options()
	o.Dialer, o.PoolSize, o.MaxRetries, o.ContextTimeoutEnabled = testenv.Opaque, 128, retries, retries < 0
	rdb, admin := locktest.ClientWith(t, o), r.Client(t)
	return rdb, func(n int) {
		t.Helper()
		testenv.FillPool(t, rdb, admin, n)
		testenv.CloseIdle(t, admin)
	}
}

// A lock can be acquired, extended and released although each request first meets connections that
// the server has closed.
func TestIdleConnectionsClosed(t *testing.T) {
	o := &lock.Options{Timeout: 4 * time.Second, TTL: testenv.Hang}
	server := testenv.SharedRedis(t)
	single, closeIdle := opaque(t, server, 0)
	unrepeated, closeUnrepeated := opaque(t, server, -1)
	lockers := map[string]*lock.Locker{
		"redis":      locktest.Closed(t)(lock.NewRedis(single, o)),
		"no retries": locktest.Closed(t)(lock.NewRedis(unrepeated, o)),
	}
	for name, closeIdle := range map[string]func(int){
		"redis":      closeIdle,
		"no retries": closeUnrepeated,
	} {
		for _, dead := range []int{2, 100} {
			t.Run(fmt.Sprintf("%s/%d", name, dead), func(t *testing.T) {
				locked(t, lockers[name], func() { closeIdle(dead) })
			})
		}
	}
}

func locked(t *testing.T, l *lock.Locker, closeIdle func()) {
	for range 2 { // the first time, the clock of the server is unknown
		closeIdle()
		lease, err := l.TryAcquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire", err, nil)
		closeIdle()
		locktest.Want(t, "extend", lease.Extend(t.Context()), nil)
		closeIdle()
		locktest.Want(t, "release", lease.Release(), nil)
	}
}

// A fenced read may be repeated. A fenced write may not: it fails, and the next one succeeds.
func TestIdleConnectionsClosedFenced(t *testing.T) {
	rdb, closeIdle := opaque(t, testenv.SharedRedis(t), -1)
	locktest.Want(t, "set", lock.SetFenced(t.Context(), rdb, "a", "value", 7, time.Minute), nil)
	closeIdle(100)
	value, err := lock.GetFenced(t.Context(), rdb, "a", 7)
	locktest.Want(t, "get", err, nil)
	if value != "value" {
		t.Errorf("%q", value)
	}
	closeIdle(100)
	if err := lock.SetFenced(t.Context(), rdb, "a", "next", 7, time.Minute); err == nil {
		t.Error("the write was sent twice, or the connection was not closed")
	}
	locktest.Want(t, "set", lock.SetFenced(t.Context(), rdb, "a", "next", 7, time.Minute), nil)
}
