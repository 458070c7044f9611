package consistency

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// commit sends the COMMIT and executes the steps after it. The rows may have changed from here
// on, so no step ends with ctx.
func (u *update) commit(ctx context.Context) error {
	u.commitSent = true
	err := u.tx.Commit()
	point("committed")
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := conn.WithTimeout(ctx, stepTimeout)
	defer cancel()
	switch {
	case err == nil:
	case commitRefused(err):
		u.rolledBack.Add(1)
		return u.afterRollback(ctx, wording.Errorf("consistency: commit: rolled back: %w", err))
	default:
		return u.outcomeUnknown(ctx, err)
	}
	u.updates.Add(1)
	if u.hooks != nil {
		u.hooks.Committed(u.rows...)
	}
	switch {
	case len(u.keys) == 0 || u.level == Async:
		return nil
	case u.level == Outbox && u.skipsRedis():
		return u.finish(ctx, u.skipRedis(ctx))
	}
	return u.finish(ctx, u.invalidateCommitted(ctx))
}

// commitRefused reports whether err says that PostgreSQL has rolled back at the COMMIT: a
// serialization failure, a deadlock, a deferred constraint, or a statement before it that failed.
// The driver reports the last without a code (pgx.ErrTxCommitRollback).
func commitRefused(err error) bool {
	switch state := sqldb.SQLState(err); {
	case state == postgresSerialization, state == postgresDeadlock, strings.HasPrefix(state, postgresIntegrity):
		return true
	}
	return strings.Contains(err.Error(), "commit unexpectedly resulted in rollback")
}

var errSkipped = errors.New("not tried, because Redis was unreachable a moment ago")

// invalidateCommitted invalidates the keys after the commit and releases the hold. It returns the
// keys that it could not invalidate.
func (u *update) invalidateCommitted(ctx context.Context) (failed failures) {
	if u.level != Strict {
		failed = failuresOf(u.keys, u.afterCommit(ctx))
		point("invalidated")
	} else {
		if u.store != nil && !u.store(ctx, u.hold) {
			u.notStored.Add(1)
		}
		point("stored")
		failed = failuresOf(u.keys, u.afterCommit(ctx))
		point("filters-committed")
		failed.join(u.invalidateGroups(ctx)) // first, because groups are not on hold
		if u.hold != nil {
			// This invalidates the keys, except those that were stored.
			failed.join(failuresOf(u.held, u.hold.Invalidate(ctx)))
		}
		point("released")
	}
	u.noteRedis(failed, len(u.keys))
	return failed
}

// invalidateGroups invalidates the keys that are groups, which cannot be on hold. It returns those
// that it could not invalidate.
func (u *update) invalidateGroups(ctx context.Context) (failed failures) {
	groups := slices.DeleteFunc(slices.Clone(u.keys), func(k cacheaside.Key) bool { return !k.Group })
	return failuresOf(groups, u.cache.InvalidateKeys(ctx, groups...))
}

// finish completes a committed write. It removes the outbox rows of the invalidated keys, or
// queues the failed keys and the second invalidations (Options.DoubleDelete).
func (u *update) finish(ctx context.Context, failed failures) error {
	if u.rows != nil {
		u.remover.add(slices.DeleteFunc(u.rows, func(i Item) bool { return failed[i.Key] != nil })...)
	} else if err := u.put(ctx, u.queueItems(failed, u.options.DoubleDelete)); err != nil {
		return errors.Join(err, failed.err())
	}
	return u.reportQueued(ctx, failed.among(u.keys), failed.err())
}

// reportQueued counts and reports keys that are in the queue. It returns an ErrQueued if the
// queue is in memory.
func (c *core) reportQueued(ctx context.Context, keys []cacheaside.Key, cause error) error {
	if len(keys) == 0 {
		return nil
	}
	c.queued.Add(int64(len(keys)))
	if c.options.OnQueued != nil {
		c.options.OnQueued(ctx, keys, cause)
	}
	if c.queueInMemory() {
		return wording.Errorf("consistency: %w: %w", ErrQueued, cause)
	}
	return nil
}

// queueInMemory reports whether the queue is lost with the process.
func (c *core) queueInMemory() bool {
	_, inMemory := c.options.Queue.(*MemoryQueue)
	return inMemory
}

// outcomeUnknown completes a write that may have been committed or may still be committed. It
// invalidates the keys now, and schedules a second invalidation.
func (u *update) outcomeUnknown(ctx context.Context, cause error) error {
	u.unknowns.Add(1)
	if u.hold != nil {
		u.hold.Abandon() // the rows may still change, so the hold stays until it expires
	}
	err := wording.Errorf("consistency: %w: %w", ErrUnknown, cause)
	failed := u.invalidateChanged(ctx)
	if u.rows != nil { // if the transaction is committed, a Relay finds the rows
		return err
	}
	if notQueued := u.put(ctx, u.queueItems(failed, max(u.repeatAfter, u.options.DoubleDelete))); notQueued != nil {
		return errors.Join(err, notQueued, failed.err())
	}
	return err
}

// invalidateChanged adds keys that may have changed to their filters and invalidates them. It
// returns the keys that have failed.
func (u *update) invalidateChanged(ctx context.Context) (failed failures) {
	failed = invalidate(ctx, u.cache, u.keys)
	u.noteRedis(failed, len(u.keys))
	return failed
}

// queueItems returns the items to queue after a commit: the failed keys now, and, unless
// repeatAfter is 0, all keys repeatAfter later.
func (u *update) queueItems(failed failures, repeatAfter time.Duration) (items []Item) {
	for _, k := range u.keys {
		switch {
		case failed[k] != nil:
			items = append(items, Item{Key: k, Again: repeatAfter, Inserting: u.admits(k, false)})
		case repeatAfter > 0:
			items = append(items, Item{Key: k, After: repeatAfter, Inserting: u.admits(k, false)})
		}
	}
	return items
}

// put puts items of a committed write into the queue. Its error is an ErrNotQueued.
func (c *core) put(ctx context.Context, items []Item) error { return c.putOr(ctx, items, ErrNotQueued) }

// putOr puts items into the queue. Its error is notQueued with the cause.
func (c *core) putOr(ctx context.Context, items []Item, notQueued error) error {
	if len(items) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	if err := c.options.Queue.Put(ctx, items...); err != nil {
		c.notQueued.Add(int64(len(items)))
		return wording.Errorf("consistency: %w: %w", notQueued, err)
	}
	point("queued")
	return nil
}

// outboxItems returns the outbox rows for keys. They become due after the writer has had time to
// invalidate the keys itself. byRelay means that only a Relay adds the keys to filters.
func (c *core) outboxItems(level Level, keys []cacheaside.Key, byRelay bool) []Item {
	items := make([]Item, len(keys))
	for i, k := range keys {
		items[i] = Item{
			ID: NewID(), New: true, Key: k, After: c.grace, Again: c.options.DoubleDelete,
			Inserting: c.admits(k, byRelay),
		}
		if level == Async {
			items[i].After, items[i].Reload = c.options.AsyncDelay, c.options.Reload
		}
	}
	return items
}

// admits returns the Item.Inserting of a key: whether its loader has a filter that may not contain
// it. For a loader that this process does not have, it returns unknown.
func (c *core) admits(k cacheaside.Key, unknown bool) bool {
	if !isOne(k) || c.internals.Existing(k) {
		return false
	}
	has, filter := c.internals.Loader(k.Loader)
	return filter || unknown && !has
}

// skipsRedis reports whether a write does not try Redis, because it was unreachable a moment ago.
// One write per skipRedisFor tries it.
func (c *core) skipsRedis() bool {
	last := c.redisDown.Load()
	if last == nil {
		return false
	}
	now := time.Now()
	return now.Sub(*last) < c.skipRedisFor || !c.redisDown.CompareAndSwap(last, &now)
}

// skipRedis invalidates the keys in the memory of this process only. InvalidateKeys does so even
// with a canceled context, and then does not call Redis.
func (u *update) skipRedis(ctx context.Context) (failed failures) {
	u.skipped.Add(int64(len(u.keys)))
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_ = u.cache.InvalidateKeys(ctx, u.keys...)
	return allFailed(u.keys, errSkipped)
}

// noteRedis records whether Redis was reachable for an invalidation of this number of keys.
func (c *core) noteRedis(failed failures, keys int) {
	switch {
	case len(failed) == 0:
		if c.redisDown.Load() != nil {
			c.redisDown.Store(nil)
		}
	case len(failed) == keys && errors.Is(failed.err(), cacheaside.ErrRedis):
		now := time.Now()
		c.redisDown.Store(&now)
	}
}

// rollBack ends a write whose COMMIT was not sent. cause is nil after a panic or runtime.Goexit.
func (u *update) rollBack(ctx context.Context, cause error) error {
	u.keys, _ = u.touched.close()
	var err error
	if u.tx != nil {
		err = u.tx.Rollback()
		point("rolledback")
	}
	ctx, cancel := conn.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	switch {
	case u.tx == nil:
	case errors.Is(cause, errEnded):
		return u.outcomeUnknown(ctx, cause)
	case errors.Is(err, sql.ErrTxDone): // write has ended the transaction
		return u.outcomeUnknown(ctx, errors.Join(cause, err))
	case err != nil:
		cause = errors.Join(cause, wording.Errorf("consistency: roll back: %w", err))
		fallthrough
	default:
		u.rolledBack.Add(1)
	}
	if !u.writeCalled || len(u.keys) == 0 {
		u.release(ctx)
		return cause
	}
	return u.afterRollback(ctx, cause)
}

// release releases the hold of rows that have not changed.
func (u *update) release(ctx context.Context) {
	if u.hold != nil {
		_ = u.hold.Invalidate(ctx) // if this fails, the hold expires and is counted (cacheaside.Stats.HoldsLeft)
		point("released")
	}
}

// afterRollback invalidates the keys of a transaction that was rolled back, because a part may
// have been committed. After a deadlock or DDL, MySQL no longer has a transaction, and commits
// each further statement on its own. It reports this neither at those statements nor at the
// ROLLBACK.
func (u *update) afterRollback(ctx context.Context, cause error) error {
	failed := u.invalidateRolledBack(ctx)
	if u.hold != nil {
		failed.join(failuresOf(u.held, u.hold.Invalidate(ctx)))
		point("released")
	}
	keys := failed.among(u.keys)
	items := u.queueItems(failed, u.options.DoubleDelete)
	if err := u.putOr(ctx, items, ErrNotInvalidated); err != nil {
		return errors.Join(cause, err)
	}
	_ = u.reportQueued(ctx, keys, failed.err())
	return cause
}

// invalidateRolledBack invalidates the keys of a transaction that was rolled back and adds them
// to their filters. It returns the keys that have failed.
func (u *update) invalidateRolledBack(ctx context.Context) (failed failures) {
	switch {
	case u.hold == nil && u.skipsRedis(): // Redis has just granted the hold, and releases it next
		return u.skipRedis(ctx)
	case u.refused != nil: // the filter has already failed: do not wait for it again
		failed = failuresOf(u.keys, u.cache.InvalidateKeys(ctx, u.keys...))
		u.noteRedis(failed, len(u.keys))
		failed.join(allFailed(u.keys, u.refused))
		return failed
	}
	return u.invalidateChanged(ctx)
}
