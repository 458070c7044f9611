package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// manyAtMost bounds how many keys go to Redis in one trip.
const manyAtMost = 500

// InvalidateMany invalidates many keys, as after a migration or an import: at most perSecond keys a
// second, in batches of a quarter of perSecond and of no more than 500; zero or less: one batch
// after the other. The changes must have been committed. Inserted rows are shown to the loaders'
// filters, as by Update. Options.DoubleDelete does not matter here: call InvalidateMany once more.
// For all keys of a loader, Loader.InvalidateAll costs one command.
//
// InvalidateMany returns when all keys are done, ctx ends, or the Writer is closed. each, unless
// nil, is called for each key, on the caller's goroutine: with nil when the key is invalidated;
// with an error that Is ErrQueued if the invalidation has failed and is in the queue, whatever kind
// of queue it is; with ErrNotQueued if it is not in the queue; and with the key's own error if it
// cannot be a key. An error that comes with a key is handed through. None of these ends
// InvalidateMany. The keys of the batch that is next or under way when ctx ends are reported with
// ctx's error; they may be invalidated or not.
//
// InvalidateMany returns ctx's error or cacheaside.ErrClosed if it did not come to the end.
// Otherwise, if some keys are not invalidated, its error says how many, and wraps that of one of
// them. The error Is ErrQueued only if all of these keys are in the queue.
//
//	err := w.InvalidateMany(ctx, changed, 10_000, nil)
func (w *Writer) InvalidateMany(ctx context.Context, keys iter.Seq2[cacheaside.Key, error], perSecond float64, each func(cacheaside.Key, error)) error {
	b := bulk{core: w.core, ctx: ctx, size: manyAtMost, perSecond: perSecond, each: each, next: time.Now()}
	if perSecond > 0 {
		b.size = max(1, int(min(manyAtMost, perSecond/4)))
	}
	for key, err := range keys {
		if err = cmp.Or(err, key.Check()); err != nil {
			b.report(key, err)
		} else if b.batch = append(b.batch, key); len(b.batch) >= b.size {
			b.flush()
		}
		if b.stopped != nil {
			break
		}
	}
	if b.stopped == nil {
		b.flush()
	}
	return b.err()
}

// bulk is one InvalidateMany.
type bulk struct {
	*core
	ctx       context.Context
	size      int
	perSecond float64
	each      func(cacheaside.Key, error)
	batch     []cacheaside.Key
	next      time.Time // when the next batch may go
	stopped   error     // why it goes no further

	all, left  int   // keys that were reported, and those of them that are not invalidated
	one, worse error // an error of those that are in the queue, and of those that are not
}

// report tells how a key has fared.
func (b *bulk) report(key cacheaside.Key, err error) {
	b.all++
	switch {
	case err == nil:
	case errors.Is(err, ErrQueued):
		b.left++
		b.one = cmp.Or(b.one, err)
	default:
		b.left++
		b.worse = cmp.Or(b.worse, err)
	}
	if b.each != nil {
		b.each(key, err)
	}
}

// err is that of all keys together.
func (b *bulk) err() error {
	switch {
	case b.stopped != nil:
		return fmt.Errorf("consistency: InvalidateMany: %w", b.stopped)
	case b.left == 0:
		return nil
	}
	return fmt.Errorf("consistency: InvalidateMany: %d of %d keys are not invalidated, one of them: %w", b.left, b.all, cmp.Or(b.worse, b.one))
}

// flush invalidates the batch.
func (b *bulk) flush() {
	batch := b.batch
	b.batch = nil
	if len(batch) == 0 {
		return
	}
	_ = retry.Sleep(b.ctx, time.Until(b.next))
	if b.perSecond > 0 {
		b.next = time.Now().Add(time.Duration(float64(len(batch)) / b.perSecond * float64(time.Second)))
	}
	var errs keyErrors
	errs, b.stopped = b.invalidate(batch)
	for _, key := range batch {
		b.report(key, errs[key])
	}
}

// invalidate invalidates one batch. It returns the errors, and why the batch is the last, if it is.
func (b *bulk) invalidate(batch []cacheaside.Key) (errs keyErrors, stopped error) {
	err := b.ctx.Err()
	if err == nil {
		err = b.enter()
	}
	if err != nil {
		return each(batch, err), err
	}
	defer b.under.Done()
	failed := invalidate(b.ctx, b.cache, batch)
	left := failed.of(batch)
	if len(left) == 0 {
		return nil, nil
	}
	if err := b.ctx.Err(); err != nil {
		return each(left, err), err
	}
	items := make([]Item, len(left))
	for i, k := range left {
		items[i] = Item{Key: k, Admit: b.admits(k, false)}
	}
	if notQueued := b.put(b.ctx, items); notQueued != nil {
		failed.join(each(left, notQueued))
		return failed, nil
	}
	_ = b.queuedFor(b.ctx, left, failed.err()) // each key says so itself
	errs = make(keyErrors, len(failed))
	for k, err := range failed {
		errs[k] = fmt.Errorf("consistency: %w: %w", ErrQueued, err)
	}
	return errs, nil
}
