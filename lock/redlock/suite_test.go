package redlock_test

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// redlockOn makes lockers with clients of their own, some of which keep deadlines. lost has the
// third node refuse connections.
func redlockOn(nodes []*testenv.Redis, lost *testenv.Proxy) func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
	return func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
		var clients []*redis.Client
		for i, n := range nodes {
			options := n.Options()
			options.ContextTimeoutEnabled = i%2 == 0
			if lost != nil && i == 2 {
				options.Addr = lost.Addr
			}
			clients = append(clients, locktest.ClientWith(t, options))
		}
		return locktest.Closed(t)(redlock.New(clients, o))
	}
}

func TestRedlock(t *testing.T) {
	t.Parallel()
	nodes := testenv.FiveMasters(t)
	t.Run("five", func(t *testing.T) {
		t.Parallel()
		locktest.Run(t, locktest.Backend{New: redlockOn(nodes, nil)})
	})
	t.Run("one of five lost", func(t *testing.T) {
		t.Parallel()
		lost := testenv.NewProxy(t, nodes[2].Addr)
		lost.Cut()
		locktest.Run(t, locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
			own := *o
			own.Prefix = "lost:" // not the locks of the other suite
			return redlockOn(nodes, lost)(t, &own)
		}})
	})
}

// TestRedlockInABubble is what the suite says about the ends of locks, where nothing is late.
func TestRedlockInABubble(t *testing.T) {
	locktest.LivesInBubble(t, func(t testing.TB) locktest.Backend {
		five := miniFive(t)
		return locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
			return locktest.Closed(t)(redlock.New(five(t), o))
		}}
	})
}

// An even number does.
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
