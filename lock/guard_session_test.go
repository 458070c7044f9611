package lock_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// TestGuardSessions: a guard works with any settings of the session.
func TestGuardSessions(t *testing.T) {
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		m := e.Shared(t)
		withAccounts(t, m.DB(t))
		token := int64(0)
		for _, settings := range e.Sessions() {
			db, err := sql.Open("mysql", m.SessionDSN(t, settings)+"&innodb_lock_wait_timeout=2")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			shown := func(key int, token int64) error {
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				err = accounts.Check(t.Context(), tx, key, token)
				return errors.Join(err, tx.Commit())
			}
			token++
			for range 2 {
				if err := shown(1, token); err != nil {
					t.Errorf("%s: %v", settings, err)
				}
			}
			if err := shown(1, token-1); token > 1 && !errors.Is(err, lock.ErrStale) {
				t.Errorf("%s: a smaller token: %v", settings, err)
			}
			if err := shown(2, token); !errors.Is(err, sql.ErrNoRows) {
				t.Errorf("%s: a missing row: %v", settings, err)
			}
		}
	})
}
