package lock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// on makes lockers with a client each.
func on(client func(t testing.TB) redis.UniversalClient) func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
	return func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
		return locktest.Closed(t)(lock.NewRedis(client(t), o))
	}
}

// The suites on real servers mostly wait, so they run beside each other, when all other tests,
// which may harm the servers, are over.

func TestRedis(t *testing.T) {
	t.Parallel()
	r := testenv.SharedRedis(t)
	t.Run("client that keeps deadlines", func(t *testing.T) {
		t.Parallel()
		locktest.Run(t, locktest.Backend{New: on(func(t testing.TB) redis.UniversalClient {
			o := r.Options()
			o.ContextTimeoutEnabled = true
			return locktest.ClientWith(t, o)
		})})
	})
	t.Run("client that does not", func(t *testing.T) {
		t.Parallel()
		locktest.Run(t, locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
			own := *o
			own.Prefix = "other:" // not the locks of the other suite
			return locktest.Closed(t)(lock.NewRedis(r.Client(t), &own))
		}})
	})
}

func TestLocal(t *testing.T) {
	locktest.RunInBubble(t, func(testing.TB) locktest.Backend {
		d := newService()
		return locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker { return locktest.Closed(t)(lock.New(d, o)) }}
	})
}

// TestNewLocal: the locks of a process's own, whose service grants every request.
func TestNewLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locktest.Closed(t)(lock.NewLocal(nil))
		ended, err := l.Acquire(t.Context(), "a", &lock.Options{Fixed: true, TTL: time.Second})
		locktest.Want(t, "acquire", err, nil)
		_, err = l.TryAcquire(t.Context(), "a", nil)
		locktest.Want(t, "a try", err, lock.ErrHeld)
		next, err := l.Acquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire, when the life of the first is over", err, nil)
		locktest.Want(t, "the first's context", context.Cause(ended.Context()), lock.ErrLost)
		locktest.Want(t, "release of the first", ended.Release(), lock.ErrLost)
		if next.Token() <= ended.Token() {
			t.Errorf("token %d after %d", next.Token(), ended.Token())
		}
		time.Sleep(time.Hour)
		locktest.Want(t, "the context of a lock that is extended", next.Context().Err(), nil)
		locktest.Want(t, "release", next.Release(), nil)
		lease, err := l.TryAcquire(t.Context(), "a", nil)
		locktest.Want(t, "a try", err, nil)
		locktest.Want(t, "release", lease.Release(), nil)
		locktest.Want(t, "close", l.Close(), nil)
	})
}

func TestEmbeddedRedis(t *testing.T) {
	locktest.RunInBubble(t, func(t testing.TB) locktest.Backend {
		_, client := testenv.Mini(t)
		return locktest.Backend{New: on(func(testing.TB) redis.UniversalClient { return client })}
	})
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := testenv.SharedCluster(t)
	locktest.Run(t, locktest.Backend{New: on(func(t testing.TB) redis.UniversalClient { return c.Client(t) })})
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := testenv.SharedSentinel(t)
	locktest.Run(t, locktest.Backend{New: on(func(t testing.TB) redis.UniversalClient { return s.Client(t) })})
}
