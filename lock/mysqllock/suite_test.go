package mysqllock_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/locktest"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
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

// kind describes the databases of both engines.
var kind = rowtest.Kind{
	Driver: "mysql",
	New: func(db *sql.DB, o *lock.Options, poll time.Duration) (*lock.Locker, error) {
		return mysqllock.New(db, &mysqllock.Options{Options: *o, Poll: poll})
	},
	Read: "SELECT @@autocommit", Insert: "INSERT", Take: "SET token", Release: "SET token",
	Free:    "SELECT COUNT(*) FROM cacheaside_locks WHERE name = 'lock:a' AND expires_at <= UTC_TIMESTAMP(6)",
	Durable: durable,
}

// durable makes commits survive a kill of the server. That includes earlier ones, because the log
// is written in order.
func durable(t testing.TB, db *sql.DB) {
	t.Helper()
	for _, statement := range []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1", "DROP TABLE IF EXISTS durable",
		"CREATE TABLE durable (n INT)"} {
		_, err := db.ExecContext(within(t, patience), statement)
		check(t, err)
	}
}

// table returns a server with a table in the test's own database.
func table(t testing.TB, e testenv.Engine) *testenv.SQLServer {
	t.Helper()
	m := e.Shared(t)
	check(t, mysqllock.CreateTable(within(t, patience), m.DB(t), nil))
	return m
}

func world(t testing.TB, m *testenv.SQLServer) rowtest.World {
	return rowtest.World{Kind: kind, Server: m, Addr: m.Addr, DSN: m.DSN(t)}
}

func TestSuite(t *testing.T) {
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		w := world(t, table(t, e))
		t.Parallel()
		locktest.Run(t, locktest.Backend{Idle: testenv.Accepting,
			New: func(t testing.TB, _ *lock.Options) driver.Driver {
				return mysqllock.NewDriver(w.Open(t, w.DSN))
			}})
	})
}
