// Package rowtest tests lockers whose locks are rows of a table, on real servers with faults.
package rowtest

import (
	"bytes"
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// A World is a server with the table of the locks in the test's database.
type World struct {
	Kind
	Server Server
	Addr   string // of the server
	DSN    string // of the test's database; it contains Addr
}

// Kind is a kind of database.
type Kind struct {
	Driver string // of database/sql
	New    func(db *sql.DB, o *lock.Options, poll time.Duration) (*lock.Locker, error)

	// Texts that requests contain: those that read, insert, acquire and release a lock.
	Read, Insert, Take, Release string

	// Free counts the rows of the lock "a" that have expired.
	Free string

	// Durable makes the server keep what is committed when it is killed.
	Durable func(t testing.TB, db *sql.DB)
}

// Server is a server of package testenv.
type Server interface {
	Pause()
	Resume()
	Restart(t testing.TB)
}

// Long are the options of a Locker whose locks do not expire during a test.
var Long = &lock.Options{TTL: 10 * time.Minute, Timeout: testenv.Hang / 2}

// quick are the options of a Locker whose locks do not expire during a test, and whose requests
// have a short time-out.
var quick = &lock.Options{TTL: 10 * time.Minute, Timeout: 200 * time.Millisecond}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Open returns connections that are closed with the test.
func (k Kind) Open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(k.Driver, dsn)
	check(t, err)
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // a test may have killed the server
	return db
}

// Locker returns the Locker of a process. It is closed with the test. nil options are the defaults.
func (k Kind) Locker(t testing.TB, db *sql.DB, o *lock.Options) *lock.Locker {
	t.Helper()
	if o == nil {
		o = &lock.Options{}
	}
	l, err := k.New(db, o, 0)
	check(t, err)
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test may leave a lock that it has lost
	return l
}

// db returns connections to the test's database.
func (w World) db(t testing.TB) *sql.DB {
	t.Helper()
	return w.Open(t, w.DSN)
}

// By returns connections to the test's database through a proxy.
func (w World) By(t testing.TB, p *testenv.Proxy) *sql.DB {
	t.Helper()
	return w.Open(t, strings.Replace(w.DSN, w.Addr, p.Addr, 1))
}

// rowIsFree reports whether the lock "a" is free, by a query that does not use the driver.
func (w World) rowIsFree(t testing.TB, db *sql.DB) bool {
	t.Helper()
	var free int
	check(t, db.QueryRowContext(t.Context(), w.Free).Scan(&free))
	return free == 1
}

// inTheEnd acquires a lock. It repeats Acquire, because the time-outs of l are too short for a busy
// machine.
func inTheEnd(t testing.TB, l *lock.Locker, name string) (lease *lock.Lease) {
	t.Helper()
	testenv.Eventually(t, "a lock", func() bool {
		var err error
		lease, err = l.Acquire(within(t, testenv.Hang), name, nil)
		return err == nil
	})
	return lease
}

// once calls f for the first request that contains text, and applies the action that f returns.
func once(p *testenv.Proxy, text string, f func() testenv.Action) {
	var done atomic.Bool
	p.OnRequest(func(chunk []byte) testenv.Action {
		if bytes.Contains(chunk, []byte(text)) && done.CompareAndSwap(false, true) {
			return f()
		}
		return testenv.Pass
	})
}
