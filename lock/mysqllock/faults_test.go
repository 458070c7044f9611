package mysqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// each runs a test on each engine, in a database of its own.
func each(t *testing.T, f func(t *testing.T, m *testenv.SQLServer)) {
	t.Helper()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) { f(t, table(t, e)) })
}

// eachParallel is each for tests that do the server no harm. They begin when those that do are
// over.
func eachParallel(t *testing.T, f func(t *testing.T, m *testenv.SQLServer)) {
	t.Helper()
	t.Parallel()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		m := table(t, e)
		t.Parallel()
		f(t, m)
	})
}

// by is the test's database, by way of a proxy.
func by(t testing.TB, m *testenv.SQLServer, p *testenv.Proxy) *sql.DB {
	return open(t, strings.Replace(m.DSN(t), m.Addr, p.Addr, 1))
}

// once has the action befall the first request with that text.
func once(p *testenv.Proxy, text string, f func() testenv.Action) {
	var done atomic.Bool
	p.OnRequest(func(chunk []byte) testenv.Action {
		if bytes.Contains(chunk, []byte(text)) && done.CompareAndSwap(false, true) {
			return f()
		}
		return testenv.Pass
	})
}

// long is a life that no test waits for.
var long = &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: testenv.Hang / 2}

// quick is a life that no test waits for, of requests that are given up soon.
var quick = &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: 200 * time.Millisecond}

// inTheEnd acquires a lock by a locker whose time-outs are too short for a busy machine.
func inTheEnd(t testing.TB, l *lock.Locker, name string) (lease *lock.Lease) {
	t.Helper()
	testenv.Eventually(t, "a lock", func() bool {
		var err error
		lease, err = l.Acquire(within(t, patience), name, nil)
		return err == nil
	})
	return lease
}

// rowIsFree reads a lock past its driver.
func rowIsFree(t testing.TB, db *sql.DB) bool {
	t.Helper()
	var free int
	check(t, db.QueryRow("SELECT COUNT(*) FROM cacheaside_locks WHERE name = 'lock:a' AND expires_at <= UTC_TIMESTAMP(6)").Scan(&free))
	return free == 1
}

func TestLostReply(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		p := testenv.NewProxy(t, m.Addr)
		l := locker(t, mysqllock.New, by(t, m, p), long)
		for _, text := range []string{"SELECT @@autocommit", "INSERT", "SET token"} {
			once(p, text, func() testenv.Action { return testenv.LoseReply })
			lease, err := l.Acquire(within(t, patience), "a", nil)
			check(t, err)
			p.OnRequest(nil)
			check(t, lease.Extend(within(t, patience)))
			check(t, lease.Release())
		}
	})
}

// TestSlowAnswer: one answer that does not come in time fails nobody who has stood in line for
// long.
func TestSlowAnswer(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		p := testenv.NewProxy(t, m.Addr)
		for timeout := 300 * time.Millisecond; ; timeout *= 2 {
			l := locker(t, mysqllock.New, by(t, m, p), &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: timeout})
			var slow atomic.Bool
			once(p, "SET token", func() testenv.Action {
				slow.Store(true)
				return testenv.Delay(timeout + timeout/5)
			})
			lease, err := l.Acquire(within(t, patience), fmt.Sprint("a", timeout), nil)
			if err == nil {
				err = lease.Release()
			}
			switch {
			case err == nil && slow.Load():
				return
			case timeout > 15*time.Second:
				t.Fatal(err)
			}
			t.Logf("with a time-out of %v other answers may be slow, too: %v", timeout, err)
		}
	})
}

// TestLostReplyOfRelease: a holder that asks again for the release of a lock that it has released
// is told so.
func TestLostReplyOfRelease(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		p := testenv.NewProxy(t, m.Addr)
		l := locker(t, mysqllock.New, by(t, m, p), long)
		lease, err := l.Acquire(within(t, patience), "a", nil)
		check(t, err)
		once(p, "SET token", func() testenv.Action { return testenv.LoseReply })
		check(t, lease.Release())
		if !rowIsFree(t, m.DB(t)) {
			t.Error("still locked")
		}
	})
}

// TestCancelledLeavesNothing: what a cancelled Acquire has got, or would get later, is given back.
func TestCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]testenv.Action{"reply lost": testenv.LoseReply, "late": testenv.Delay(400 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
				p := testenv.NewProxy(t, m.Addr)
				a, b := locker(t, mysqllock.New, by(t, m, p), long), locker(t, mysqllock.New, m.DB(t), long)
				ctx, cancel := context.WithCancel(within(t, patience))
				once(p, "SET token", func() testenv.Action {
					cancel()
					return action
				})
				_, err := a.Acquire(ctx, "a", nil)
				if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				if name == "late" {
					time.Sleep(time.Second) // until it has come
				}
				lease, err := b.Acquire(within(t, patience), "a", nil)
				check(t, err)
				check(t, lease.Release())
			})
		})
	}
}

// TestLateRequest: a request that reaches the server when its sender has given up, and cannot undo
// it, is not carried out.
func TestLateRequest(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		p := testenv.NewProxy(t, m.Addr)
		l := locker(t, mysqllock.New, by(t, m, p), quick)
		_ = inTheEnd(t, l, "a").Release() // the row is there
		db := m.DB(t)
		testenv.Eventually(t, "it is free", func() bool { return rowIsFree(t, db) })
		once(p, "SET token", func() testenv.Action {
			p.Hang(true)
			return testenv.Pass
		})
		if _, err := l.Acquire(within(t, patience), "a", nil); err == nil {
			t.Fatal("a server that hangs has granted a lock")
		}
		check(t, l.Close())
		time.Sleep(500 * time.Millisecond)
		p.Hang(false)
		time.Sleep(500 * time.Millisecond)
		if !rowIsFree(t, db) {
			t.Error("a request was carried out when nobody waited for it any more")
		}
	})
}

// TestHungServer: requests have their time-outs, and a lock survives a pause that is shorter than
// its life.
func TestHungServer(t *testing.T) {
	each(t, func(t *testing.T, m *testenv.SQLServer) {
		db := m.DB(t)
		l := locker(t, mysqllock.New, db, quick)
		lease, second := inTheEnd(t, l, "a"), inTheEnd(t, l, "b")
		m.Pause()
		for what, f := range map[string]func() error{
			"Extend":  func() error { return lease.Extend(within(t, patience)) },
			"Release": second.Release,
			"Acquire": func() error { _, err := l.Acquire(within(t, patience), "c", nil); return err },
		} {
			began, failed := time.Now(), make(chan error, 1)
			go func() { failed <- f() }()
			if err := testenv.Receive(t, "the end of "+what, failed); err == nil || errors.Is(err, lock.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
			took := time.Since(began)
			if t.Logf("%s took %v", what, took); testenv.Accepting && took > 5*time.Second {
				t.Error("too late")
			}
		}
		m.Resume()
		testenv.Eventually(t, "extended", func() bool {
			err := lease.Extend(within(t, patience))
			if errors.Is(err, lock.ErrLost) {
				t.Fatal(err)
			}
			return err == nil
		})
		if err := lease.Release(); errors.Is(err, lock.ErrLost) { // it may not be answered in so short a time
			t.Error(err)
		}
	})
}

func TestRestart(t *testing.T) {
	each(t, func(t *testing.T, m *testenv.SQLServer) {
		db := m.DB(t)
		_, err := db.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 1") // until the restart
		check(t, err)
		rows, others := locker(t, mysqllock.New, db, long), locker(t, mysqllock.New, m.DB(t), long)
		row, err := rows.Acquire(within(t, patience), "a", nil)
		check(t, err)
		m.Restart(t)
		if _, err := others.TryAcquire(within(t, patience), "a", nil); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("after a restart: %v", err)
		}
		check(t, row.Extend(within(t, patience)))
		check(t, row.Release())
		next, err := others.Acquire(within(t, patience), "a", nil)
		check(t, err)
		if next.Token() <= row.Token() {
			t.Errorf("token %d after %d", next.Token(), row.Token())
		}
		check(t, next.Release())
	})
}

// TestKilledConnection: a lock does not pass with a connection.
func TestKilledConnection(t *testing.T) {
	eachParallel(t, func(t *testing.T, m *testenv.SQLServer) {
		p := testenv.NewProxy(t, m.Addr)
		b := locker(t, mysqllock.New, m.DB(t), long)
		lease, err := locker(t, mysqllock.New, by(t, m, p), long).Acquire(within(t, patience), "a", nil)
		check(t, err)
		p.Cut()
		p.Restore()
		if _, err := b.Acquire(within(t, time.Second), "a", nil); err == nil {
			t.Fatal("a lock has passed with a connection")
		}
		check(t, lease.Release())
	})
}
