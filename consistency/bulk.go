package consistency

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// bulkBatch is the maximum number of keys sent to Redis in one trip.
const bulkBatch = 500

// InvalidateMany invalidates many keys, for example after a migration or an import. Commit the
// changes first. InvalidateMany invalidates at most perSecond keys per second, in batches of a
// quarter of perSecond, at most 500 keys. If perSecond is zero or less, the rate is not limited.
// Inserted rows are added to the filters of their loaders, as by Update. Options.DoubleDelete has
// no effect: call InvalidateMany a second time instead. To invalidate all keys of a loader, use
// Loader.InvalidateAll, which costs one command.
//
// InvalidateMany returns when all keys have been tried, ctx ends, or the Writer is closed. each,
// unless nil, is called for each key, on the caller's goroutine. Its error is nil if the key was
// invalidated; ErrQueued if the invalidation failed and is in the queue, even if the queue survives
// the process; ErrNotQueued if the queue did not accept it; the error of Key.Check for an invalid
// key; or the error that keys yielded with the key. None of these stops InvalidateMany. If ctx
// ends, the keys of the current batch, or of the next one if none is in progress, are reported with
// the error of ctx; they may have been invalidated.
//
// InvalidateMany returns the error of ctx or cacheaside.ErrClosed if it did not try all keys.
// Otherwise, if some keys were not invalidated, its error states their number and wraps the error
// of one of them. That error is ErrQueued only if all of these keys are in the queue.
//
//	err := w.InvalidateMany(ctx, changed, 10_000, nil)
func (w *Writer) InvalidateMany(
	ctx context.Context, keys iter.Seq2[cacheaside.Key, error], perSecond float64, each func(cacheaside.Key, error),
) error {
	b := bulk{core: w.core, ctx: ctx, size: bulkBatch, perSecond: perSecond, each: each, next: time.Now()}
	if perSecond > 0 {
		b.size = max(1, int(min(bulkBatch, perSecond/4)))
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

// A bulk is one call of InvalidateMany.
type bulk struct {
	*core
	ctx       context.Context
	size      int
	perSecond float64
	each      func(cacheaside.Key, error)
	batch     []cacheaside.Key
	next      time.Time // when the next batch may be sent
	stopped   error     // why no further batch is sent

	reported, failed    int   // keys reported, and those of them that were not invalidated
	queuedErr, otherErr error // one error each of the failed keys in the queue, and of the others
}

// report counts the result of a key and passes it to each.
func (b *bulk) report(key cacheaside.Key, err error) {
	b.reported++
	switch {
	case err == nil:
	case errors.Is(err, ErrQueued):
		b.failed++
		b.queuedErr = cmp.Or(b.queuedErr, err)
	default:
		b.failed++
		b.otherErr = cmp.Or(b.otherErr, err)
	}
	if b.each != nil {
		b.each(key, err)
	}
}

// err returns the error of the whole call.
func (b *bulk) err() error {
	switch {
	case b.stopped != nil:
		return wording.Errorf("consistency: InvalidateMany: %w", b.stopped)
	case b.failed == 0:
		return nil
	}
	return wording.Errorf("consistency: InvalidateMany: %d of %d keys are not invalidated, one of them: %w", b.failed,
		b.reported, cmp.Or(b.otherErr, b.queuedErr))
}

// flush waits until the batch may be sent, and invalidates it.
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
	var errs failures
	errs, b.stopped = b.invalidate(batch)
	for _, key := range batch {
		b.report(key, errs[key])
	}
}

// invalidate invalidates one batch and queues the keys that fail. It returns the
// errors of the keys, and the reason if no further batch may be sent.
func (b *bulk) invalidate(batch []cacheaside.Key) (errs failures, stopped error) {
	err := b.ctx.Err()
	if err == nil {
		err = b.enter()
	}
	if err != nil {
		return allFailed(batch, err), err
	}
	defer b.calls.Done()
	failed := invalidate(b.ctx, b.cache, batch)
	failedKeys := failed.among(batch)
	if len(failedKeys) == 0 {
		return nil, nil
	}
	if err := b.ctx.Err(); err != nil {
		return allFailed(failedKeys, err), err
	}
	items := make([]Item, len(failedKeys))
	for i, k := range failedKeys {
		items[i] = Item{Key: k, Inserting: b.admits(k, false)}
	}
	if notQueued := b.put(b.ctx, items); notQueued != nil {
		failed.join(allFailed(failedKeys, notQueued))
		return failed, nil
	}
	_ = b.reportQueued(b.ctx, failedKeys, failed.err()) // the errors of the keys say so
	errs = make(failures, len(failed))
	for k, err := range failed {
		errs[k] = wording.Errorf("consistency: %w: %w", ErrQueued, err)
	}
	return errs, nil
}
