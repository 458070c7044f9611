package consistency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
)

// commit sends the COMMIT. From here on nothing ends with ctx: the rows may have changed.
func (u *update) commit(ctx context.Context) error {
	u.over = true
	err := u.tx.Commit()
	point("committed")
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := conn.WithTimeout(ctx, within)
	defer cancel()
	switch {
	case err == nil:
	default:
		return u.unknown(ctx, err)
	}
	u.updates.Add(1)
	switch {
	case len(u.keys) == 0 || u.level == Async:
		return nil
	case u.level == Outbox && u.skips():
		u.skipped.Add(int64(len(u.keys)))
		u.forget(ctx, u.keys)
		return u.later(ctx, u.keys, errSkipped)
	}
	left, err := u.tell(ctx)
	return u.later(ctx, left, err)
}

var errSkipped = errors.New("not tried, since Redis was unreachable a moment ago")

// tell has the caches forget the keys, after the commit, and ends the hold. It returns those keys
// for which that has failed.
func (u *update) tell(ctx context.Context) (left []cacheaside.Key, err error) {
	if u.hold == nil {
		err = u.admitted(ctx)
		left = failed(u.keys, err)
		point("invalidated")
	} else {
		if u.store != nil && !u.store(ctx, u.hold) {
			u.notStored.Add(1)
		}
		point("stored")
		err = u.admitted(ctx)
		point("shown")
		released := u.hold.Release(ctx) // invalidates them, but what was stored
		point("released")
		left, err = failed(u.keys, err, released), errors.Join(err, released)
	}
	u.reached(err, len(left) == len(u.keys))
	return left, err
}

// failed returns those of keys of which errs, each of one call for all of them, do not say that
// they are done.
func failed(keys []cacheaside.Key, errs ...error) []cacheaside.Key {
	return slices.DeleteFunc(slices.Clone(keys), func(k cacheaside.Key) bool {
		return !slices.ContainsFunc(errs, func(err error) bool { return errorOf(k, err) != nil })
	})
}

// errorOf is what err, of a call for many keys, says of k.
func errorOf(k cacheaside.Key, err error) error {
	if batch, ok := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err); ok {
		return batch.Errs[k]
	}
	return err
}

// later sees to what is still to be done for a write that was committed: what is left, because of
// cause; and all of it once more, where that was asked for.
func (u *update) later(ctx context.Context, left []cacheaside.Key, cause error) error {
	if u.rows != nil {
		undone := setOf(left)
		u.remover.add(slices.DeleteFunc(u.rows, func(i Item) bool { return undone[i.Key] })...)
	} else if err := u.put(ctx, u.again(left, u.options.DoubleDelete)); err != nil {
		return errors.Join(err, cause)
	}
	return u.queuedFor(ctx, left, cause)
}

// queuedFor says that keys are in the queue, where there are any.
func (c *core) queuedFor(ctx context.Context, left []cacheaside.Key, cause error) error {
	if len(left) == 0 {
		return nil
	}
	c.queued.Add(int64(len(left)))
	if c.options.OnQueued != nil {
		c.options.OnQueued(ctx, left, cause)
	}
	if c.forgets() {
		return fmt.Errorf("consistency: %w: %w", ErrQueued, cause)
	}
	return nil
}

// forgets tells whether the queue is lost with the process.
func (c *core) forgets() bool {
	_, memory := c.options.Queue.(*MemoryQueue)
	return memory
}

// unknown sees to a write of which nobody knows whether it was committed, or will yet be.
func (u *update) unknown(ctx context.Context, cause error) error {
	u.unknowns.Add(1)
	switch {
	case u.hold == nil:
	default:
		u.hold.Abandon() // the rows may still change
	}
	err := fmt.Errorf("consistency: %w: %w", ErrUnknown, cause)
	left, told := u.show(ctx, u.keys)
	u.reached(told, len(left) == len(u.keys))
	if u.rows != nil { // if it was committed, or will be, a Relay finds them
		return err
	}
	if failed := u.put(ctx, u.again(left, max(u.onceMore, u.options.DoubleDelete))); failed != nil {
		return errors.Join(err, failed, told)
	}
	return err
}

// show has filters and caches know of what was changed by others, or has been tried to tell them.
func (c *core) show(ctx context.Context, keys []cacheaside.Key) (left []cacheaside.Key, err error) {
	errs := invalidate(ctx, c.cache, keys)
	return keysIn(keys, errs), batchError(errs)
}

// again makes the items of what is to be done after the commit: at once of what is left, and so
// much later of all, unless that is 0.
func (u *update) again(left []cacheaside.Key, after time.Duration) (items []Item) {
	undone := setOf(left)
	for _, k := range u.keys {
		switch {
		case undone[k]:
			items = append(items, Item{Key: k, Again: after, Admit: u.admits(k, false)})
		case after > 0:
			items = append(items, Item{Key: k, After: after, Admit: u.admits(k, false)})
		}
	}
	return items
}

// put puts items into the queue. Its error is an ErrNotQueued.
func (c *core) put(ctx context.Context, items []Item) error {
	if len(items) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	if err := c.options.Queue.Put(ctx, items...); err != nil {
		c.notQueued.Add(int64(len(items)))
		return fmt.Errorf("consistency: %w: %w", ErrNotQueued, err)
	}
	point("queued")
	return nil
}

func setOf(keys []cacheaside.Key) map[cacheaside.Key]bool {
	set := make(map[cacheaside.Key]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// items are the rows of the outbox for keys: due when their writer has had time to invalidate the
// keys itself, unless it does not. byRelay says that only a Relay will tell the filters.
func (c *core) items(level Level, keys []cacheaside.Key, byRelay bool) []Item {
	items := make([]Item, len(keys))
	for i, k := range keys {
		items[i] = Item{ID: newID(), Key: k, After: c.grace, Again: c.options.DoubleDelete, Admit: c.admits(k, byRelay)}
		if level == Async {
			items[i].After, items[i].Reload = c.options.AsyncDelay, c.options.Reload
		}
	}
	return items
}

// admits is Item.Admit of a key: whether its loader has a filter, which may not know it. unknown is
// the answer for a loader that this process has not got.
func (c *core) admits(k cacheaside.Key, unknown bool) bool {
	if k.All || c.inside.Existing(k) {
		return false
	}
	has, filter := c.inside.Loader(k.Loader)
	return filter || unknown && !has
}

// skips tells whether a write leaves Redis alone, as it could not be reached a moment ago. One
// write in each outFor tries.
func (c *core) skips() bool {
	last := c.out.Load()
	if last == nil {
		return false
	}
	now := time.Now()
	return now.Sub(*last) < c.outFor || !c.out.CompareAndSwap(last, &now)
}

// forget has the memory of this process forget the keys, which an invalidation does also where it
// cannot reach Redis, and does not try to reach it.
func (u *update) forget(ctx context.Context, keys []cacheaside.Key) {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_ = u.cache.InvalidateKeys(ctx, keys...)
}

// reached notes how Redis has taken an invalidation.
func (c *core) reached(err error, none bool) {
	switch {
	case err == nil:
		if c.out.Load() != nil {
			c.out.Store(nil)
		}
	case none && errors.Is(err, cacheaside.ErrRedis):
		now := time.Now()
		c.out.Store(&now)
	}
}

// rollBack ends a write whose COMMIT was not sent. cause is nil in a panic.
func (u *update) rollBack(ctx context.Context, cause error) error {
	u.keys, _ = u.touched.end()
	var err error
	if u.tx != nil {
		err = u.tx.Rollback()
		point("rolledback")
	}
	ctx, cancel := conn.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	switch {
	case u.tx == nil:
	case errors.Is(err, sql.ErrTxDone): // write has ended it
		return u.unknown(ctx, errors.Join(cause, err))
	case err != nil:
		cause = errors.Join(cause, fmt.Errorf("consistency: roll back: %w", err))
		fallthrough
	default:
		u.rolledBack.Add(1)
	}
	if !u.called || len(u.keys) == 0 {
		u.release(ctx)
		return cause
	}
	return u.undo(ctx, cause)
}

// release ends the hold of rows that have not changed.
func (u *update) release(ctx context.Context) {
	if u.hold != nil {
		_ = u.hold.Release(ctx) // what is left ends by itself, and is counted (cacheaside.Stats.HoldsLeft)
		point("released")
	}
}

// undo makes the caches forget the keys of a transaction that was rolled back. Nobody knows that
// nothing of it was committed: MySQL has no transaction any more after a deadlock, or after DDL,
// and commits what comes then statement by statement; MySQL does not say so, neither then nor at
// the ROLLBACK.
func (u *update) undo(ctx context.Context, cause error) error {
	left := u.undoOthers(ctx, u.keys[u.held:])
	maps.Copy(left, u.undoHeld(ctx, u.keys[:u.held]))
	keys := keysIn(u.keys, left)
	items := u.again(keys, u.options.DoubleDelete)
	if failed := u.put(ctx, items); failed != nil {
		return errors.Join(cause, failed)
	}
	if len(keys) > 0 {
		_ = u.queuedFor(ctx, keys, &cacheaside.BatchError[cacheaside.Key]{Errs: left})
	}
	return cause
}

// undoOthers is for keys that are not on hold. It returns why some are left.
func (u *update) undoOthers(ctx context.Context, keys []cacheaside.Key) (left map[cacheaside.Key]error) {
	switch {
	case len(keys) == 0:
		return map[cacheaside.Key]error{}
	case u.skips():
		u.skipped.Add(int64(len(keys)))
		u.forget(ctx, keys)
		return each(keys, errSkipped)
	case u.refused != nil: // their filters are not to be waited for once more
		told := u.cache.InvalidateKeys(ctx, keys...)
		u.reached(told, len(failed(keys, told)) == len(keys))
		return each(keys, errors.Join(u.refused, told))
	}
	left = invalidate(ctx, u.cache, keys)
	u.reached(batchError(left), len(left) == len(keys))
	return left
}

// undoHeld is for those that are.
func (u *update) undoHeld(ctx context.Context, keys []cacheaside.Key) (left map[cacheaside.Key]error) {
	left = map[cacheaside.Key]error{}
	if u.hold == nil {
		return left
	}
	if u.refused != nil {
		left = each(keys, u.refused)
	} else {
		committed, admitted, refused := admit(ctx, u.inside.AdmitHeld, keys)
		left = leftOf(admitted, committed(ctx))
		maps.Copy(left, refused)
	}
	for k, err := range leftOf(keys, u.hold.Release(ctx)) {
		left[k] = errors.Join(left[k], err)
	}
	point("released")
	return left
}
