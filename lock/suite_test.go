package lock_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/locktest"
	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// closed closes a Locker with the test.
func closed(t testing.TB) func(l *lock.Locker, err error) *lock.Locker {
	return func(l *lock.Locker, err error) *lock.Locker {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
}

// on makes lockers with a client each.
func on(client func(t testing.TB) redis.UniversalClient) func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
	return func(t testing.TB, o *lock.LockerOptions) *lock.Locker { return closed(t)(lock.NewRedis(client(t), o)) }
}

func TestRedis(t *testing.T) {
	r := testenv.SharedRedis(t)
	t.Run("client that keeps deadlines", func(t *testing.T) {
		locktest.Run(t, locktest.Backend{New: on(func(t testing.TB) redis.UniversalClient {
			o := r.Options()
			o.ContextTimeoutEnabled = true
			return clientWith(t, o)
		})})
	})
	t.Run("client that does not", func(t *testing.T) {
		locktest.Run(t, locktest.Backend{New: on(func(t testing.TB) redis.UniversalClient { return r.Client(t) })})
	})
}

func TestLocal(t *testing.T) {
	d := lock.NewLocalDriver()
	locktest.Run(t, locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker { return closed(t)(lock.New(d, o)) }})
}

func TestEmbeddedRedis(t *testing.T) {
	_, client := testenv.Mini(t)
	locktest.Run(t, locktest.Backend{New: on(func(testing.TB) redis.UniversalClient { return client })})
}

func TestCluster(t *testing.T) {
	c := testenv.SharedCluster(t)
	locktest.Run(t, locktest.Backend{New: on(func(t testing.TB) redis.UniversalClient { return c.Client(t) })})
}

func TestSentinel(t *testing.T) {
	s := testenv.SharedSentinel(t)
	locktest.Run(t, locktest.Backend{New: on(func(t testing.TB) redis.UniversalClient { return s.Client(t) })})
}

func clientWith(t testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}
