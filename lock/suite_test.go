package lock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
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
			return clientWith(t, o)
		})})
	})
	t.Run("client that does not", func(t *testing.T) {
		t.Parallel()
		locktest.Run(t, locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
			own := *o
			own.Prefix = "other:" // not the locks of the other suite
			return closed(t)(lock.NewRedis(r.Client(t), &own))
		}})
	})
}

func TestLocal(t *testing.T) {
	locktest.RunInBubble(t, func(testing.TB) locktest.Backend {
		d := lock.NewLocalDriver()
		return locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker { return closed(t)(lock.New(d, o)) }}
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

// patient are options by which nothing is given up, or ends, as long as a test waits.
func patient() *lock.LockerOptions {
	return &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: testenv.Hang / 2}
}

// quick are options for tests that await the end of a request: it is given up after the time-out.
// The lock itself lasts.
func quick(timeout time.Duration) *lock.LockerOptions {
	return &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: timeout}
}

// inTheEnd acquires a lock by a locker whose time-outs are too short for a busy machine.
func inTheEnd(t testing.TB, l *lock.Locker, name string, o *lock.Options) (lease *lock.Lease) {
	t.Helper()
	testenv.Eventually(t, "a lock", func() bool {
		var err error
		lease, err = l.Acquire(t.Context(), name, o)
		return err == nil
	})
	return lease
}

func clientWith(t testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}
