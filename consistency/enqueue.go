package consistency

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
)

// Enqueue is for transactions of your own. Call it in one, with the keys of the rows that the
// transaction changes: they are invalidated when the transaction has been committed, whatever
// happens then, and only then. tx is an *sql.Tx, *sqlx.Tx, or whatever else takes statements of
// that transaction. Enqueue writes into the outbox; without one it returns an error. After an
// error, roll back. Nothing else need be called: a Relay invalidates the keys 2 s after this call
// (Async: Options.AsyncDelay after), or when the transaction has been committed, if that is later,
// and then has the filters know of inserted rows. To have it sooner, call Cache.InvalidateKeys,
// too, after the commit.
func (w *Writer) Enqueue(ctx context.Context, tx sqlx.ExecerContext, keys ...cacheaside.Key) error {
	if w.outbox == nil {
		return fmt.Errorf("consistency: Enqueue: %w", errNoOutbox)
	}
	if tx == nil {
		return errors.New("consistency: Enqueue: the transaction is nil")
	}
	if err := w.enter(); err != nil {
		return err
	}
	defer w.under.Done()
	var t touched
	if err := t.add(keys); err != nil || len(t.keys) == 0 {
		return err
	}
	return w.outbox.PutIn(ctx, tx, w.items(w.level, t.keys, true)...)
}
