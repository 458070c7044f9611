package pgxtx_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/pgxtx"
)

// A write through pgx. The outbox has its invalidation if and only if it is committed.
func ExampleTx() {
	rename := func(ctx context.Context, pool *pgxpool.Pool, cache *cacheaside.Cache, w *consistency.Writer,
		users *cacheaside.Loader[int64, string], id int64, name string,
	) error {
		key := users.Key(id).Existing()
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id); err != nil {
				return err
			}
			return w.Enqueue(ctx, pgxtx.Tx(tx), key)
		})
		if err != nil {
			return err
		}
		_ = cache.InvalidateKeys(ctx, key) // at once; a Relay repeats what fails
		return nil
	}
	_ = rename // with a pool, a Cache and a Writer with an outbox
	// Output:
}
