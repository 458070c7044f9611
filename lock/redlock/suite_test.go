package redlock_test

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
	suite "github.com/cacheaside/cacheaside/lock/locktest"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// clientsOf returns new clients. Some of them keep deadlines. The third one connects through lost,
// if it is not nil.
func clientsOf(t testing.TB, nodes []*testenv.Redis, lost *testenv.Proxy) []*redis.Client {
	var clients []*redis.Client
	for i, n := range nodes {
		options := n.Options()
		options.ContextTimeoutEnabled = i%2 == 0
		if lost != nil && i == 2 {
			options.Addr = lost.Addr
		}
		clients = append(clients, locktest.ClientWith(t, options))
	}
	return clients
}

// redlockOn makes lockers with clients of their own.
func redlockOn(nodes []*testenv.Redis, lost *testenv.Proxy) func(t testing.TB, o *lock.Options) *lock.Locker {
	return func(t testing.TB, o *lock.Options) *lock.Locker {
		return locktest.Closed(t)(redlock.New(clientsOf(t, nodes, lost), o))
	}
}

// driverOn makes drivers with clients of their own.
func driverOn(nodes []*testenv.Redis, lost *testenv.Proxy) func(t testing.TB, o *lock.Options) driver.Driver {
	return func(t testing.TB, o *lock.Options) driver.Driver {
		return newDriver(t, clientsOf(t, nodes, lost), o)
	}
}

func newDriver(t testing.TB, clients []*redis.Client, o *lock.Options) driver.Driver {
	t.Helper()
	d, err := redlock.NewDriver(clients, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRedlock(t *testing.T) {
	t.Parallel()
	nodes := testenv.FiveMasters(t)
	t.Run("five", func(t *testing.T) {
		t.Parallel()
		suite.Run(t, suite.Backend{Idle: testenv.Accepting, New: driverOn(nodes, nil)})
	})
	t.Run("one of five lost", func(t *testing.T) {
		t.Parallel()
		lost := testenv.NewProxy(t, nodes[2].Addr)
		lost.Cut()
		suite.Run(t, suite.Backend{Idle: testenv.Accepting, New: driverOn(nodes, lost)})
	})
}

// TestRedlockInABubble runs the suite where nothing is late.
func TestRedlockInABubble(t *testing.T) {
	suite.RunInBubble(t, func(t testing.TB) suite.Backend {
		five := miniFive(t)
		return suite.Backend{New: func(t testing.TB, o *lock.Options) driver.Driver {
			return newDriver(t, five(t), o)
		}}
	})
}

// An even number of nodes works.
func TestRedlockOfFour(t *testing.T) {
	nodes := testenv.FiveMasters(t)[:4]
	a, b := redlockOn(nodes, nil)(t, locktest.Patient()), redlockOn(nodes, nil)(t, locktest.Patient())
	lease, err := a.Acquire(t.Context(), "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TryAcquire(t.Context(), "a", nil); !errors.Is(err, lock.ErrHeld) {
		t.Error(err)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}
