package rowtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// Children registers the processes of HolderKilled, HolderStopped and History, in an init
// function of the package's tests.
func Children(k Kind) {
	open := func(o *lock.Options) (*lock.Locker, error) {
		db, err := sql.Open(k.Driver, os.Getenv("LOCK_DSN"))
		if err != nil {
			return nil, err
		}
		return k.New(db, o, 0)
	}
	locktest.Child(open)
	// A holder prints its token. When its context has ended, it prints whether the cause of the
	// context is ErrLost, and whether Release returns ErrLost.
	testenv.RegisterChild("holder", func() {
		ttl, err := time.ParseDuration(os.Getenv("LOCK_TTL"))
		if err != nil {
			panic(err)
		}
		l, err := open(&lock.Options{TTL: ttl})
		if err != nil {
			panic(err)
		}
		var lease *lock.Lease
		for err = errors.New("not yet"); err != nil; { // requests for so short a life have little time
			lease, err = l.Acquire(context.Background(), "a", nil)
		}
		fmt.Println(lease.Token())
		<-lease.Context().Done()
		fmt.Println(errors.Is(context.Cause(lease.Context()), lock.ErrLost), errors.Is(lease.Release(), lock.ErrLost))
	})
}

func holder(t *testing.T, w World, ttl time.Duration) (*testenv.Child, int64) {
	t.Helper()
	c := testenv.SpawnChild(t, "holder", "LOCK_DSN="+w.DSN, "LOCK_TTL="+ttl.String())
	line, err := c.ReadLine(testenv.Hang)
	check(t, err)
	var token int64
	_, err = fmt.Sscan(line, &token)
	check(t, err)
	return c, token
}

// HolderKilled checks that the lock of a killed process expires.
func HolderKilled(t *testing.T, w World) {
	l, ttl := w.Locker(t, w.db(t), Long), time.Second
	c, token := holder(t, w, ttl)
	for {
		taken, err := l.TryAcquire(within(t, testenv.Hang), "a", nil)
		if errors.Is(err, lock.ErrHeld) {
			break
		}
		check(t, err)
		line, err := c.ReadLine(testenv.Hang)
		check(t, err)
		if line != "true true" || ttl > 30*time.Second {
			t.Fatalf("a second process had the lock, and the holder reported: %s", line)
		}
		t.Logf("too slow a machine for a life of %v", ttl)
		check(t, taken.Release())
		ttl *= 2
		c, token = holder(t, w, ttl)
	}
	c.Kill()
	began := time.Now()
	lease, err := l.Acquire(within(t, testenv.Hang), "a", nil)
	check(t, err)
	t.Logf("after %v", time.Since(began))
	if lease.Token() <= token {
		t.Errorf("token %d after %d", lease.Token(), token)
	}
	check(t, lease.Release())
}

// HolderStopped checks that a suspended holder loses the lock, detects the loss when it resumes,
// and does not affect the next holder.
func HolderStopped(t *testing.T, w World) {
	c, token := holder(t, w, time.Second)
	l := w.Locker(t, w.db(t), Long)
	c.Pause()
	began := time.Now()
	lease, err := l.Acquire(within(t, testenv.Hang/6), "a", nil)
	check(t, err)
	t.Logf("after %v", time.Since(began))
	if lease.Token() <= token {
		t.Errorf("token %d after %d", lease.Token(), token)
	}
	c.Resume()
	line, err := c.ReadLine(testenv.Hang)
	check(t, err)
	if line != "true true" {
		t.Errorf("the context and Release report: %s", line)
	}
	check(t, lease.Extend(within(t, testenv.Hang)))
	check(t, lease.Release())
}

// History checks histories of locks while processes are stopped, the database hangs, is stopped, or
// is killed and started again, connections are reset, replies are lost and requests are delayed.
func History(t *testing.T, w World) { history(t, w, locktest.Exclusive) }

// HistoryOfKinds is History for read-write locks and semaphores, only in make accept: the tests of
// Redis check short histories always.
func HistoryOfKinds(t *testing.T, w World) {
	if !locktest.Full() {
		t.Skip("only in make accept")
	}
	for _, kind := range []locktest.Kind{locktest.ReadWrite, locktest.Semaphore} {
		t.Run(string(kind), func(t *testing.T) { history(t, w, kind) })
	}
}

func history(t *testing.T, w World, kind locktest.Kind) {
	db := w.db(t)
	w.Durable(t, db)
	seeds, length := locktest.Seeds()
	for _, seed := range seeds {
		var proxies []*testenv.Proxy
		var disturbances int
		locktest.Faults{
			Kind:    kind,
			Stopped: []string{"LOCK_DSN=" + w.DSN},
			Locker: func(t testing.TB, o *lock.Options) *lock.Locker {
				p := testenv.NewProxy(t, w.Addr)
				proxies = append(proxies, p)
				l, err := w.New(w.By(t, p), o, 5*time.Millisecond)
				check(t, err)
				t.Cleanup(func() { l.Close() }) //nolint:errcheck // locks may be lost
				return l
			},
			Disturb: func(ctx context.Context, r *rand.Rand, _ time.Duration) string {
				if disturbances++; disturbances%5 == 4 { // in turn, so that a short history sees all kinds
					w.Server.Restart(t)
					w.Durable(t, db)
					return "server killed"
				}
				return locktest.Disturb(ctx, r, disturbances%5, proxies[r.IntN(len(proxies))], w.Server,
					600*time.Millisecond, 6)
			},
		}.Run(t, seed, length)
	}
}
