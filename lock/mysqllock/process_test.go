package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// A holder: prints its token, and, when its context has ended, whether that, and Release, say that
// the lock is lost.
func init() {
	testenv.RegisterChild("holder", func() {
		db, err := sql.Open("mysql", os.Getenv("LOCK_DSN"))
		if err != nil {
			panic(err)
		}
		ttl, err := time.ParseDuration(os.Getenv("LOCK_TTL"))
		if err != nil {
			panic(err)
		}
		l, err := mysqllock.New(db, &mysqllock.Options{LockerOptions: lock.LockerOptions{TTL: ttl}})
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

func holder(t *testing.T, m *testenv.SQLServer, ttl time.Duration) (*testenv.Child, int64) {
	t.Helper()
	c := testenv.SpawnChild(t, "holder", "LOCK_DSN="+m.DSN(t), "LOCK_TTL="+ttl.String())
	line, err := c.ReadLine(patience)
	check(t, err)
	var token int64
	_, err = fmt.Sscan(line, &token)
	check(t, err)
	return c, token
}

func TestHolderKilled(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		l, ttl := locker(t, mysqllock.New, m.DB(t), long), time.Second
		c, token := holder(t, m, ttl)
		for {
			taken, err := l.TryAcquire(within(t, patience), "a", nil)
			if errors.Is(err, lock.ErrHeld) {
				break
			}
			check(t, err)
			line, err := c.ReadLine(patience)
			check(t, err)
			if line != "true true" || ttl > 30*time.Second {
				t.Fatalf("somebody had the lock beside its holder, who was told: %s", line)
			}
			t.Logf("too slow a machine for a life of %v", ttl)
			check(t, taken.Release())
			ttl *= 2
			c, token = holder(t, m, ttl)
		}
		c.Kill()
		began := time.Now()
		lease, err := l.Acquire(within(t, patience), "a", nil)
		check(t, err)
		t.Logf("after %v", time.Since(began))
		if lease.Token() <= token {
			t.Errorf("token %d after %d", lease.Token(), token)
		}
		check(t, lease.Release())
	})
}

// TestHolderStopped: a holder that stood still loses the lock, is told when it goes on, and does
// the next no harm.
func TestHolderStopped(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		c, token := holder(t, m, time.Second)
		l := locker(t, mysqllock.New, m.DB(t), long)
		c.Pause()
		began := time.Now()
		lease, err := l.Acquire(within(t, patience/6), "a", nil)
		check(t, err)
		t.Logf("after %v", time.Since(began))
		if lease.Token() <= token {
			t.Errorf("token %d after %d", lease.Token(), token)
		}
		c.Resume()
		line, err := c.ReadLine(patience)
		check(t, err)
		if line != "true true" {
			t.Errorf("told: context, Release: %s", line)
		}
		check(t, lease.Extend(within(t, patience)))
		check(t, lease.Release())
	})
}
