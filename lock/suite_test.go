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
	"github.com/cacheaside/cacheaside/lock/driver"
	suite "github.com/cacheaside/cacheaside/lock/locktest"
)

// on makes drivers with a client each.
func on(client func(t testing.TB) redis.UniversalClient) suite.Backend {
	return suite.Backend{Idle: testenv.Accepting, New: func(t testing.TB, o *lock.Options) driver.Driver {
		d, err := lock.NewRedisDriver(client(t), o)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}}
}

// The suites on real servers mostly wait, so they run concurrently. They run after all other tests,
// which may harm the servers.

func TestRedis(t *testing.T) {
	t.Parallel()
	r := testenv.SharedRedis(t)
	t.Run("client that keeps deadlines", func(t *testing.T) {
		t.Parallel()
		suite.Run(t, on(func(t testing.TB) redis.UniversalClient {
			o := r.Options()
			o.ContextTimeoutEnabled = true
			return locktest.ClientWith(t, o)
		}))
	})
	t.Run("client that does not", func(t *testing.T) {
		t.Parallel()
		suite.Run(t, on(func(t testing.TB) redis.UniversalClient { return r.Client(t) }))
	})
}

func TestLocal(t *testing.T) {
	suite.RunInBubble(t, func(testing.TB) suite.Backend {
		d := newService()
		return suite.Backend{New: func(testing.TB, *lock.Options) driver.Driver { return d }}
	})
}

func TestLocalDriver(t *testing.T) {
	suite.RunInBubble(t, func(testing.TB) suite.Backend {
		d := lock.NewLocalDriver()
		return suite.Backend{New: func(testing.TB, *lock.Options) driver.Driver { return d }}
	})
}

// TestNewLocal: each local Locker has its own service, which grants every request.
func TestNewLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locktest.Closed(t)(lock.NewLocal(nil))
		ended, err := l.Acquire(t.Context(), "a", &lock.AcquireOptions{Fixed: true, TTL: time.Second})
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
	suite.RunInBubble(t, func(t testing.TB) suite.Backend {
		_, client := testenv.Mini(t)
		return on(func(testing.TB) redis.UniversalClient { return client })
	})
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := testenv.SharedCluster(t)
	suite.Run(t, on(func(t testing.TB) redis.UniversalClient { return c.Client(t) }))
}

func TestServerless(t *testing.T) {
	t.Parallel()
	s := testenv.SharedServerless(t)
	suite.Run(t, on(func(t testing.TB) redis.UniversalClient { return s.Client(t) }))
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := testenv.SharedSentinel(t)
	suite.Run(t, on(func(t testing.TB) redis.UniversalClient { return s.Client(t) }))
}
