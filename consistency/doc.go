// Package consistency changes rows in transactions and makes sure that their cached values are
// invalidated, even if Redis is down or the process dies after the commit.
//
//	// a table in your database, see sqloutbox.Dialect.Schema
//	outbox, err := sqloutbox.New(db, sqloutbox.MySQL, nil)
//	w, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: outbox})
//
//	err = w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE users SET name = ? WHERE id = ?", name, id)
//		return err
//	}, users.Key(id))
//
// The Level of a write determines its guarantees. Inline invalidates after the commit. Outbox also
// survives a kill. Strict also prevents all processes from caching the rows during the write.
// WriteThrough also caches the new value. Async leaves the invalidation to a Relay. Writer.At
// selects another level for a single write. docs/guides/writing.md lists which level wins which
// race, and what happens on a rollback, a panic, a lost connection, and while Redis is down.
//
// Invalidations that fail are stored in a Queue, in memory or in the database. A Relay retries
// them; each Writer runs one unless Options.NoRelay is set. Use Writer.Enqueue in transactions
// that the Writer does not run, and Writer.InvalidateMany for many keys.
package consistency
