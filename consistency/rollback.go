package consistency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
)

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
