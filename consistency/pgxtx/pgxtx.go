// Package pgxtx lets transactions of pgx, and of sqlc's code for pgx, write into an outbox.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := queries.WithTx(tx).RenameUser(ctx, id, name); err != nil { // code of sqlc
//			return err
//		}
//		return w.Enqueue(ctx, pgxtx.Tx(tx), users.Key(id))
//	})
package pgxtx

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
)

// Tx returns tx as the argument of consistency.Writer.Enqueue and consistency.TxQueue.PutIn. What
// they write is committed or rolled back with tx; if tx is nested, its savepoint counts too. As tx
// itself, the result must not be used by two goroutines at the same time. If tx is nil, so is the
// result, which both refuse.
//
// A *pgxpool.Tx is a pgx.Tx as well. A pool is not: with it, a write could be committed without its
// invalidation.
func Tx(tx pgx.Tx) sqlx.ExecerContext {
	if tx == nil {
		return nil
	}
	return execer{tx}
}

type execer struct{ tx pgx.Tx }

// ExecContext implements sqlx.ExecerContext. pgx sends a statement without arguments as text.
func (e execer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := e.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return affected(tag.RowsAffected()), nil
}

// affected is the number of rows that a statement has changed.
type affected int64

func (a affected) RowsAffected() (int64, error) { return int64(a), nil }

func (affected) LastInsertId() (int64, error) {
	return 0, errors.New("pgxtx: PostgreSQL has no LastInsertId: use RETURNING")
}
