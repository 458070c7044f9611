// Package consistency is the write side: it changes rows in a transaction, and then makes the
// caches forget them, whatever happens in between.
//
//	// a table beside yours, see Schema
//	outbox, err := consistency.NewSQLOutbox(db, consistency.MySQL, nil)
//	w, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: outbox})
//
//	err = w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE users SET name = ? WHERE id = ?", name, id)
//		return err
//	}, users.Key(id))
//
// How far a write goes is its Level: Inline invalidates after the commit; Outbox also survives a
// kill; Strict also keeps everybody from caching the rows while they are written; WriteThrough also
// caches what was written; Async leaves it all to a Relay. Writer.At gives a single write another
// level. docs/guides/writing.md has a table of which level wins which race, and one of what happens
// on rollback, panic, a lost connection, and a Redis that is out.
//
// Invalidations that cannot be done at once are kept in a Queue, in memory or in the database, and
// done by a Relay, which a Writer runs by itself. For transactions of your own there is
// Writer.Enqueue; for many keys at once, Writer.InvalidateMany.
package consistency
