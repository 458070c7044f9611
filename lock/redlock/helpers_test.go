package redlock_test

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // tests of the suite mostly wait; -parallel on the command line prevails
		panic(err)
	}
	testenv.Main(m)
}

func init() {
	locktest.Child(func(o *lock.LockerOptions) (*lock.Locker, error) {
		var clients []*redis.Client
		for addr := range strings.SplitSeq(os.Getenv("LOCK_REDLOCK"), ",") {
			clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}))
		}
		return redlock.New(clients, o)
	})
}

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

func want(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Fatalf("%s: %v, not %v", what, got, want)
	}
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

func acquired(t *testing.T, l *lock.Locker) *lock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), "a", &lock.Options{Wait: time.Hour})
	want(t, "acquire", err, nil)
	return lease
}
