package lock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/lock"
)

// TestOnceWithARow is the recipe of docs/guides/locks.md: a row with the name of the run, in the
// transaction of the job, makes its effects happen exactly once. The job dies before it commits,
// then before its success is recorded.
func TestOnceWithARow(t *testing.T) {
	guarded(t, func(t *testing.T, db *sql.DB) {
		execute(t, db, "CREATE TABLE runs (name VARCHAR(100) PRIMARY KEY)")
		l := locktest.Closed(t)(lock.NewLocal(nil))
		errDied := errors.New("died")
		run := func(name string, before, after error) error {
			return l.Once(t.Context(), name, time.Hour, func(ctx context.Context, _ int64) error {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				defer tx.Rollback()
				if _, err := tx.ExecContext(ctx, "INSERT INTO runs (name) VALUES ('report 2026-11-29')"); err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 10"); err != nil {
					return err
				}
				if before != nil {
					return before
				}
				return errors.Join(tx.Commit(), after)
			})
		}
		var balance int
		locktest.Want(t, "read", db.QueryRowContext(t.Context(), "SELECT balance FROM accounts").Scan(&balance), nil)
		locktest.Want(t, "died half-way", run("a", errDied, nil), errDied)
		wantBalance(t, db, balance)
		locktest.Want(t, "died after the commit", run("a", nil, errDied), errDied)
		wantBalance(t, db, balance+10)
		if err := run("a", nil, nil); err == nil || errors.Is(err, lock.ErrHeld) {
			t.Errorf("a third run: %v", err)
		}
		wantBalance(t, db, balance+10)
	})
}
