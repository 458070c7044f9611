package mysqllock_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestRights: SELECT, INSERT and UPDATE are enough.
func TestRights(t *testing.T) {
	eachParallel(t, func(t *testing.T, w rowtest.World) {
		admin := w.Open(t, w.DSN)
		user := "lock_" + w.Server.(*testenv.SQLServer).Database(t)
		for _, statement := range []string{
			"CREATE USER " + user, "GRANT SELECT, INSERT, UPDATE ON cacheaside_locks TO " + user,
		} {
			_, err := admin.Exec(statement)
			check(t, err)
		}
		t.Cleanup(func() { admin.Exec("DROP USER " + user) })
		dsn, err := mysql.ParseDSN(w.DSN)
		check(t, err)
		dsn.User = user
		l := w.Locker(t, w.Open(t, dsn.FormatDSN()), rowtest.Long)
		lease, err := l.TryAcquire(within(t, patience), "a", nil)
		check(t, err)
		check(t, lease.Extend(within(t, patience)))
		check(t, lease.Release())
	})
}
