package consistency

import (
	"context"
	"errors"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// inside are the internal methods of a Writer, for the plugins of object mappers.
type (
	inside     = writeside.Inside[writerSide]
	writerSide = writeside.Writer[cacheaside.Key, Item, sqlx.ExecerContext]
)

type insideWriter struct {
	*core
	level Level
}

func (w insideWriter) HasFilter(loader string) bool {
	_, filter := w.internals.Loader(loader)
	return filter
}

// Enqueue implements writeside.Writer.
func (w insideWriter) Enqueue(
	ctx context.Context, tx sqlx.ExecerContext, keys []cacheaside.Key, committed bool,
) ([]Item, error) {
	if w.outbox == nil {
		return nil, wording.Errorf("consistency: Enqueue: %w", errNoOutbox)
	}
	if tx == nil {
		return nil, errors.New("consistency: Enqueue: the transaction is nil")
	}
	if err := w.enter(); err != nil {
		return nil, err
	}
	defer w.calls.Done()
	var t touched
	if err := t.add(keys); err != nil || len(t.keys) == 0 {
		return nil, err
	}
	items := w.outboxItems(w.level, t.keys, true)
	for i := range items {
		if !committed && w.level != Async {
			items[i].After = 0
		}
	}
	return items, w.outbox.PutIn(ctx, tx, items...)
}

// Committed implements writeside.Writer.
func (w insideWriter) Committed(ctx context.Context, rows []Item) {
	if len(rows) == 0 || w.enter() != nil {
		return
	}
	defer w.calls.Done()
	if w.hooks != nil {
		w.hooks.Committed(rows...)
	}
	if w.level == Async {
		return
	}
	ctx, cancel := conn.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	keys := make([]cacheaside.Key, 0, len(rows))
	for _, r := range rows {
		keys = append(keys, r.Key)
	}
	if w.skipsRedis() {
		cancel() // InvalidateKeys then invalidates the memory of this process only
		w.skipped.Add(int64(len(keys)))
		_ = w.cache.InvalidateKeys(ctx, keys...)
		return
	}
	failed := invalidate(ctx, w.cache, keys)
	w.noteRedis(failed, len(keys))
	var done []Item
	for _, r := range rows {
		if failed[r.Key] == nil {
			done = append(done, r)
		}
	}
	w.remover.add(done...)
}
