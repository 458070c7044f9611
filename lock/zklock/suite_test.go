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
	_ = flag.Set("test.parallel", "16") // they mostly wait, so their number does not depend on the processors
	testenv.Main(m)
}

// parallel is the server for a test that does it no harm, and has nodes of its own. It begins
// after the others, which may have all nodes deleted, have ended.
func parallel(t *testing.T) *testenv.ZooKeeper {
	t.Helper()
	z := server(t)
	t.Parallel()
	return z
}

func init() {
	locktest.Child(func(o *lock.LockerOptions) (*lock.Locker, error) {
		return zklock.New([]string{os.Getenv("LOCK_ZOOKEEPER")}, as(o))
	})
}

// as are the options of a Locker whose locks live as o says.
func as(o *lock.LockerOptions) *zklock.Options {
	return &zklock.Options{Prefix: o.Prefix, Timeout: o.Timeout, SessionTimeout: 2 * o.TTL}
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
		New: func(t testing.TB, o *lock.LockerOptions) driver.Driver {
			own := as(o)
			own.Root = "/suite"
			return zklock.NewDriver(t, z.Addr, own)
		},
	})
}

// TestHistory: processes that are stopped, connections that hang and are reset, requests that are
// delayed and replies that are lost, a server that is stopped and started again.
func TestHistory(t *testing.T) {
	z := server(t)
	seeds, length := locktest.Seeds()
	for _, seed := range seeds {
		var proxies []*testenv.Proxy
		var disturbances int
		locktest.Faults{
			Stopped: []string{"LOCK_ZOOKEEPER=" + z.Addr},
			TTL:     500 * time.Millisecond,
			Locker: func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
				p := testenv.NewProxy(t, z.Addr)
				proxies = append(proxies, p)
				return locker(t, p.Addr, as(o))
			},
			Disturb: func(ctx context.Context, r *rand.Rand, _ time.Duration) string {
				disturbances++
				kind := []int{0, 1, 2, 0, 3, 1, 2, 2}[disturbances%8] // one thing after the other, so that a short history has seen them all
				return locktest.Disturb(ctx, r, kind, proxies[r.IntN(len(proxies))], z, 600*time.Millisecond, 20)
			},
		}.Run(t, seed, length)
	}
}
