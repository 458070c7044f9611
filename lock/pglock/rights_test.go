package pglock_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestRights: SELECT, INSERT and UPDATE are enough. If row-level security hides the locks, the
// error says what repairs it, instead of a lock that looks free or held.
func TestRights(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		admin := w.Open(t, w.DSN)
		role := "lock_" + w.Server.(*testenv.Postgres).Database(t)
		for _, statement := range []string{"CREATE ROLE " + role + " LOGIN",
			"GRANT SELECT, INSERT, UPDATE ON cacheaside_locks TO " + role} {
			_, err := admin.Exec(statement)
			check(t, err)
		}
		t.Cleanup(func() { admin.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
		u, err := url.Parse(w.DSN)
		check(t, err)
		u.User = url.User(role)
		l := w.Locker(t, w.Open(t, u.String()), rowtest.Long)
		lease, err := l.TryAcquire(within(t, patience), "a", nil)
		check(t, err)
		check(t, lease.Extend(within(t, patience)))
		check(t, lease.Release())

		_, err = admin.Exec("ALTER TABLE cacheaside_locks ENABLE ROW LEVEL SECURITY; CREATE POLICY readers ON " +
			"cacheaside_locks FOR SELECT USING (true); CREATE POLICY writers ON cacheaside_locks FOR INSERT WITH " +
			"CHECK (true)")
		check(t, err)
		if _, err := l.TryAcquire(within(t, patience), "a", nil); err == nil ||
			!strings.Contains(err.Error(), "row-level security") {
			t.Errorf("with a policy for SELECT and INSERT: %v", err)
		}
		_, err = admin.Exec("DROP POLICY readers ON cacheaside_locks")
		check(t, err)
		if _, err := l.TryAcquire(within(t, patience), "a", nil); err == nil ||
			!strings.Contains(err.Error(), "row-level security") {
			t.Errorf("with a policy for INSERT: %v", err)
		}
	})
}
