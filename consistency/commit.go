package consistency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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
		return u.later(ctx, u.skip(ctx))
	}
	return u.later(ctx, u.tell(ctx))
}

var errSkipped = errors.New("not tried, since Redis was unreachable a moment ago")

// tell has the caches forget the keys, after the commit, and ends the hold. It returns those keys
// for which that has failed.
func (u *update) tell(ctx context.Context) (left keyErrors) {
	if u.hold == nil {
		left = leftOf(u.keys, u.admitted(ctx))
		point("invalidated")
	} else {
		if u.store != nil && !u.store(ctx, u.hold) {
			u.notStored.Add(1)
		}
		point("stored")
		left = leftOf(u.keys, u.admitted(ctx))
		point("shown")
		left.join(leftOf(u.keys, u.hold.Release(ctx))) // which invalidates them, except what was stored
		point("released")
	}
	u.reached(left)
	return left
}

// later sees to what is still to be done for a write that was committed: what is left; and all of
// it once more, where that was asked for.
func (u *update) later(ctx context.Context, left keyErrors) error {
	if u.rows != nil {
		u.remover.add(slices.DeleteFunc(u.rows, func(i Item) bool { return left[i.Key] != nil })...)
	} else if err := u.put(ctx, u.again(left, u.options.DoubleDelete)); err != nil {
		return errors.Join(err, left.err())
	}
	return u.queuedFor(ctx, left.of(u.keys), left.err())
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
	left := u.show(ctx)
	if u.rows != nil { // if it was committed, or will be, a Relay finds them
		return err
	}
	if failed := u.put(ctx, u.again(left, max(u.onceMore, u.options.DoubleDelete))); failed != nil {
		return errors.Join(err, failed, left.err())
	}
	return err
}

// show has filters and caches know of keys that may have changed. It returns those for which that
// has failed.
func (u *update) show(ctx context.Context) (left keyErrors) {
	left = invalidate(ctx, u.cache, u.keys)
	u.reached(left)
	return left
}

// again makes the items of what is to be done after the commit: at once of what is left, and so
// much later of all, unless that is 0.
func (u *update) again(left keyErrors, after time.Duration) (items []Item) {
	for _, k := range u.keys {
		switch {
		case left[k] != nil:
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

// skip is for a write that leaves Redis alone. It has the memory of this process forget the keys,
// which an invalidation does also where it cannot reach Redis, and does not try to reach it.
func (u *update) skip(ctx context.Context) (left keyErrors) {
	u.skipped.Add(int64(len(u.keys)))
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_ = u.cache.InvalidateKeys(ctx, u.keys...)
	return each(u.keys, errSkipped)
}

// reached notes how Redis has taken an invalidation of the keys.
func (u *update) reached(left keyErrors) {
	switch {
	case len(left) == 0:
		if u.out.Load() != nil {
			u.out.Store(nil)
		}
	case len(left) == len(u.keys) && errors.Is(left.err(), cacheaside.ErrRedis):
		now := time.Now()
		u.out.Store(&now)
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
	left := u.undone(ctx)
	if u.hold != nil {
		left.join(leftOf(u.keys[:u.held], u.hold.Release(ctx)))
		point("released")
	}
	keys := left.of(u.keys)
	items := u.again(left, u.options.DoubleDelete)
	if failed := u.put(ctx, items); failed != nil {
		return errors.Join(cause, failed)
	}
	_ = u.queuedFor(ctx, keys, left.err())
	return cause
}

// undone has filters and caches know of the keys of a transaction that was rolled back. It returns
// why some are left.
func (u *update) undone(ctx context.Context) (left keyErrors) {
	switch {
	case u.skips():
		return u.skip(ctx)
	case u.refused != nil: // their filters are not to be waited for once more
		left = leftOf(u.keys, u.cache.InvalidateKeys(ctx, u.keys...))
		u.reached(left)
		left.join(each(u.keys, u.refused))
		return left
	}
	return u.show(ctx)
}
