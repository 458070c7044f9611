package zklock_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
	suite "github.com/cacheaside/cacheaside/lock/locktest"
	"github.com/cacheaside/cacheaside/lock/zklock"
)

func TestMain(m *testing.M) {
	// Most tests only wait, so the number of processors does not matter.
	_ = flag.Set("test.parallel", "16")
	testenv.Main(m)
}

// parallel returns the server for a test that does not harm it and has its own nodes. It waits for
// the tests that may delete all nodes.
func parallel(t *testing.T) *testenv.ZooKeeper {
	t.Helper()
	z := server(t)
	t.Parallel()
	return z
}

func init() {
	locktest.Child(func(o *lock.Options) (*lock.Locker, error) {
		return zklock.New([]string{os.Getenv("LOCK_ZOOKEEPER")}, as(o))
	})
}

// as returns options for a Locker whose locks live as long as o says.
func as(o *lock.Options) *zklock.Options {
	return &zklock.Options{Options: lock.Options{Prefix: o.Prefix, Timeout: o.Timeout}, SessionTimeout: 2 * o.TTL}
}

// locker makes a Locker that is closed with the test.
func locker(t testing.TB, addr string, o *zklock.Options) *lock.Locker {
	t.Helper()
	l, err := zklock.New([]string{addr}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestSuite(t *testing.T) {
	z := parallel(t)
	suite.Run(t, suite.Backend{
		Session: true,
		Idle:    testenv.Accepting,
		New: func(t testing.TB, o *lock.Options) driver.Driver {
			own := as(o)
			own.Root = "/suite"
			return zklock.NewDriver(t, z.Addr, own)
		},
	})
}

// TestHistory suspends processes, hangs and resets connections, delays requests, drops replies, and
// stops and restarts the server.
func TestHistory(t *testing.T) {
	z := server(t)
	seeds, length := locktest.Seeds()
	for _, seed := range seeds {
		var proxies []*testenv.Proxy
		var disturbances int
		locktest.Faults{
			Stopped: []string{"LOCK_ZOOKEEPER=" + z.Addr},
			TTL:     500 * time.Millisecond,
			Locker: func(t testing.TB, o *lock.Options) *lock.Locker {
				p := testenv.NewProxy(t, z.Addr)
				proxies = append(proxies, p)
				return locker(t, p.Addr, as(o))
			},
			Disturb: func(ctx context.Context, r *rand.Rand, _ time.Duration) string {
				disturbances++
				// In a fixed order, so that a short history contains all of them.
				kind := []int{0, 1, 2, 0, 3, 1, 2, 2}[disturbances%8]
				return locktest.Disturb(ctx, r, kind, proxies[r.IntN(len(proxies))], z, 600*time.Millisecond, 20)
			},
		}.Run(t, seed, length)
	}
}
