package pglock_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/locktest"
	"github.com/cacheaside/cacheaside/lock/pglock"
)

// patience limits the wait for events that should happen immediately.
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

var kind = rowtest.Kind{
	Driver: "pgx",
	New: func(db *sql.DB, o *lock.Options, poll time.Duration) (*lock.Locker, error) {
		return pglock.New(db, &pglock.Options{Options: *o, Poll: poll})
	},
	Read: "LEFT JOIN", Insert: "INSERT", Take: "SET token", Release: "SET expires_at",
	Free:    "SELECT count(*) FROM cacheaside_locks WHERE name = 'lock:a' AND expires_at <= clock_timestamp()",
	Durable: func(testing.TB, *sql.DB) {}, // durable by default
}

// world returns a server with a table in the test's own database.
func world(t testing.TB, p *testenv.Postgres) rowtest.World {
	t.Helper()
	check(t, pglock.CreateTable(within(t, patience), p.DB(t), nil))
	return rowtest.World{Kind: kind, Server: p, Addr: p.Addr, DSN: p.DSN(t)}
}

// run runs a test in a database of its own.
func run(t *testing.T, f func(t *testing.T, w rowtest.World)) {
	t.Helper()
	f(t, world(t, testenv.SharedPostgres(t)))
}

// runParallel is run for tests that do not harm the server. They begin after those that do.
func runParallel(t *testing.T, f func(t *testing.T, w rowtest.World)) {
	t.Helper()
	w := world(t, testenv.SharedPostgres(t))
	t.Parallel()
	f(t, w)
}

// backend returns drivers for the suite that open connections by dsn.
func backend(w rowtest.World, dsn string) locktest.Backend {
	return locktest.Backend{Idle: testenv.Accepting, New: func(t testing.TB, _ *lock.Options) driver.Driver {
		return pglock.NewDriver(w.Open(t, dsn))
	}}
}

func TestSuite(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		locktest.Run(t, backend(w, w.DSN))
	})
}
