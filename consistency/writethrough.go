package consistency

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// WriteThrough is Update at the level Strict, whatever the level of w, but the caches show the new
// value of key at once instead of forgetting the key: write returns the value that a load would
// return once the transaction is committed. The value is stored only if nobody else has held or
// invalidated the key since before the transaction; else, and if Redis fails just then, the key is
// invalidated as by Update (Stats.NotStored). So of two writers of one key neither can leave the
// other's value in the caches. also are the other keys that the write changes, which are
// invalidated, as are those that Touch adds.
//
// WriteThrough needs Options.StrictWrites of the Cache, in all processes. For a row that is deleted
// use Update. The errors are those of Update.
func WriteThrough[K comparable, V any](ctx context.Context, w *Writer, l *cacheaside.Loader[K, V], key K, write func(ctx context.Context, tx *sqlx.Tx) (V, error), also ...cacheaside.Key) error {
	var value V
	u := &update{core: w.core, level: Strict, store: func(ctx context.Context, h *cacheaside.Hold) bool {
		stored, err := writeside.Of(l).StoreHeld(ctx, h, key, value)
		return stored && err == nil
	}}
	return u.run(ctx, func(ctx context.Context, tx *sqlx.Tx) (err error) {
		value, err = write(ctx, tx)
		return err
	}, append([]cacheaside.Key{l.Key(key)}, also...))
}
