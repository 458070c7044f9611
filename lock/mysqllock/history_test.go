package mysqllock_test

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

func init() {
	locktest.Child(func(o *lock.LockerOptions) (*lock.Locker, error) {
		db, err := sql.Open("mysql", os.Getenv("LOCK_DSN"))
		if err != nil {
			return nil, err
		}
		return mysqllock.New(db, &mysqllock.Options{LockerOptions: *o})
	})
}

// TestHistory: processes that are stopped, a database that hangs, is stopped, or is killed and
// started again, connections that are reset, replies lost and requests delayed.
func TestHistory(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) { history(t, table(t, e)) })
}

func history(t *testing.T, m *testenv.SQLServer) {
	db := m.DB(t)
	durable(t, db)
	defer func() { db.ExecContext(within(t, patience), "SET GLOBAL innodb_flush_log_at_trx_commit = 0") }() // tests that come after have no need to wait for the disk
	seeds, length := locktest.Seeds()
	for _, seed := range seeds {
		var proxies []*testenv.Proxy
		var disturbances int
		locktest.Faults{
			Stopped: []string{"LOCK_DSN=" + m.DSN(t)},
			Locker: func(t testing.TB, o *lock.LockerOptions) *lock.Locker {
				p := testenv.NewProxy(t, m.Addr)
				proxies = append(proxies, p)
				return locker(t, func(db *sql.DB, o *mysqllock.Options) (*lock.Locker, error) {
					o.Poll = 5 * time.Millisecond
					return mysqllock.New(db, o)
				}, by(t, m, p), o)
			},
			Disturb: func(ctx context.Context, r *rand.Rand, _ time.Duration) string {
				if disturbances++; disturbances%5 == 4 { // one thing after the other, so that a short history has seen them all
					m.Restart(t)
					durable(t, db)
					return "server killed"
				}
				return locktest.Disturb(ctx, r, disturbances%5, proxies[r.IntN(len(proxies))], m, 600*time.Millisecond, 6)
			},
		}.Run(t, seed, length)
	}
}

// durable has commits survive a server that is killed: those from now on, and, as the log is
// written in its order, those before.
func durable(t testing.TB, db *sql.DB) {
	t.Helper()
	for _, statement := range []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1", "DROP TABLE IF EXISTS durable", "CREATE TABLE durable (n INT)"} {
		_, err := db.ExecContext(within(t, patience), statement)
		check(t, err)
	}
}
