package kept

import (
	"context"

	"github.com/jmoiron/sqlx"
)

// InTx calls f in a transaction, and commits it unless f fails. A statement by itself would not be
// committed where sessions are without autocommit, and would read what an older one saw.
func InTx(ctx context.Context, db *sqlx.DB, f func(tx *sqlx.Tx) error) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // f's error says more
		return err
	}
	return tx.Commit()
}

// Exec executes a statement in a transaction of its own, and returns the number of rows that it has
// changed.
func Exec(ctx context.Context, db *sqlx.DB, statement string, args ...any) (rows int64, err error) {
	err = InTx(ctx, db, func(tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, statement, args...)
		if err == nil {
			rows, err = result.RowsAffected()
		}
		return err
	})
	return rows, err
}
