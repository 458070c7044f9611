package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cacheaside/cacheaside"
)

// manyAtMost bounds how many keys go to Redis in one trip.
const manyAtMost = 500

// InvalidateMany invalidates as many keys as there are, after a migration or an import, say: at most perSecond of them a second, in batches of a quarter of that and no more than 500; zero or less: one batch after the other. What
// has changed must be committed. Inserted rows are shown to the loaders' filters, as by Update. Options.DoubleDelete does not matter here: call it once more. For all keys of a loader, Loader.InvalidateAll costs one command.
//
// It does its work while the caller ranges over what it returns: each key with nil when it is invalidated; with an error that Is ErrQueued if that has failed, and is in the queue, whatever kind of queue it is; with ErrNotQueued if it is not; with its own
// error if it cannot be a key. Errors of keys are handed through, and do not end it. When ctx ends it stops, with the keys of the batch that was next or under way reported with ctx's error, and not invalidated for sure; it also stops when
// the loop does.
//
//	for key, err := range w.InvalidateMany(ctx, changed, 10_000) {
//		…
//	}
func (w *Writer) InvalidateMany(ctx context.Context, keys iter.Seq2[cacheaside.Key, error], perSecond float64) iter.Seq2[cacheaside.Key, error] {
	size := manyAtMost
	if perSecond > 0 {
		size = max(1, int(min(manyAtMost, perSecond/4)))
	}
	return func(yield func(cacheaside.Key, error) bool) {
		b := bulk{core: w.core, ctx: ctx, size: size, perSecond: perSecond, yield: yield, next: time.Now()}
		for key, err := range keys {
			if err == nil {
				err = key.Check()
			}
			if err == nil {
				if !b.add(key) {
					return
				}
			} else if !yield(key, err) {
				return
			}
		}
		b.flush()
	}
}

// bulk is one InvalidateMany.
type bulk struct {
	*core
	ctx       context.Context
	size      int
	perSecond float64
	yield     func(cacheaside.Key, error) bool
	batch     []cacheaside.Key
	next      time.Time // when the next batch may go
}

// add is false when there is no more to be done.
func (b *bulk) add(key cacheaside.Key) bool {
	b.batch = append(b.batch, key)
	return len(b.batch) < b.size || b.flush()
}

func (b *bulk) flush() bool {
	batch := b.batch
	b.batch = nil
	if len(batch) == 0 {
		return true
	}
	rest(b.ctx, time.Until(b.next))
	if b.perSecond > 0 {
		b.next = time.Now().Add(time.Duration(float64(len(batch)) / b.perSecond * float64(time.Second)))
	}
	errs, stop := b.invalidate(batch)
	for _, key := range batch {
		if !b.yield(key, errs[key]) {
			return false
		}
	}
	return !stop
}

// invalidate does it for one batch. It returns the errors, and whether that is the end.
func (b *bulk) invalidate(batch []cacheaside.Key) (errs map[cacheaside.Key]error, stop bool) {
	errs = make(map[cacheaside.Key]error)
	each := func(keys []cacheaside.Key, because func(cacheaside.Key) error) {
		for _, k := range keys {
			errs[k] = because(k)
		}
	}
	err := b.ctx.Err()
	if err == nil {
		err = b.enter()
	}
	if err != nil {
		each(batch, func(cacheaside.Key) error { return err })
		return errs, true
	}
	defer b.under.Done()
	left, err := b.show(b.ctx, batch)
	if len(left) == 0 {
		return errs, false
	}
	if err := b.ctx.Err(); err != nil {
		each(left, func(cacheaside.Key) error { return err })
		return errs, true
	}
	items := make([]Item, len(left))
	for i, k := range left {
		items[i] = Item{Key: k, Admit: b.admits(k, false)}
	}
	if failed := b.put(b.ctx, items); failed != nil {
		each(left, func(k cacheaside.Key) error { return errors.Join(failed, errorOf(k, err)) })
		return errs, false
	}
	_ = b.queuedFor(b.ctx, left, err) // each key says so itself
	each(left, func(k cacheaside.Key) error {
		return fmt.Errorf("consistency: %w: %w", ErrQueued, cmp.Or(errorOf(k, err), err))
	})
	return errs, false
}
