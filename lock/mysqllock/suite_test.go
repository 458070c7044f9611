package mysqllock_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// patience is how long is waited for what should come at once.
var patience = testenv.Hang

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

type maker = func(db *sql.DB, o *mysqllock.Options) (*lock.Locker, error)

// locker makes that of a process. nil options are the defaults.
func locker(t testing.TB, create maker, db *sql.DB, o *lock.LockerOptions) *lock.Locker {
	t.Helper()
	var all mysqllock.Options
	if o != nil {
		all.LockerOptions = *o
	}
	l, err := create(db, &all)
	check(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// table is a server with a table in the test's own database.
func table(t testing.TB, e testenv.Engine) *testenv.SQLServer {
	t.Helper()
	m := e.Shared(t)
	check(t, mysqllock.CreateTable(within(t, patience), m.DB(t), nil))
	return m
}

func TestSuite(t *testing.T) {
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		dsn := table(t, e).DSN(t)
		t.Parallel()
		locktest.Run(t, locktest.Backend{New: func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
			return locker(t, mysqllock.New, open(t, dsn), o)
		}})
	})
}

func open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	check(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}
