package cacheaside

import (
	"context"
	"slices"
)

// Inserting makes rows visible to reads as soon as they are inserted. A filter
// (LoaderOptions.Filter) must know their keys before any caller can request them, and their
// absence may be cached.
//
// Call Inserting before the commit, with the keys that the transaction inserts. If it returns an
// error, do not commit. After the commit, call committed. Once committed has returned nil, every
// read that starts then finds the rows, in this process and others, with the bounds of Invalidate
// for the memory of other processes. If each process has a copy of the filter, the bound of the
// filter applies in addition, except to reads with Fresh.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	committed, err := users.Inserting(ctx, id)
//	if err != nil {
//		tx.Rollback()
//		return err
//	}
//	if _, err := tx.ExecContext(ctx, "INSERT INTO users …", id, name); err != nil {
//		tx.Rollback() // Inserting needs no clean-up
//		return err
//	}
//	if err := tx.Commit(); err != nil {
//		return err // if it may have been committed, call committed
//	}
//	// the row is there: if this fails, call committed again, not the INSERT
//	return committed(context.WithoutCancel(ctx))
//
// If the database generates the key, for example with AUTO_INCREMENT, call Inserting between the
// INSERT and the Commit. A transaction that is not committed does no harm: the filter passes its
// keys until it is rebuilt. committed may be called more than once, and concurrently. It updates
// the filter and invalidates the keys, and tries both even if one fails. Until it has returned
// nil, a read may not find the row: a cached absence may be served until its TTL, and a filter
// that is being rebuilt may hide the row until it is rebuilt again.
//
// Without a filter, Inserting does nothing, and committed is Invalidate. The errors of both are
// *BatchError[K] with an *Error for each key that failed. If a key has no text, Inserting returns
// an error for that key, and adds no key. Without keys, both do nothing and return no error, also
// after Close.
func (l *Loader[K, V]) Inserting(ctx context.Context, keys ...K) (committed func(context.Context) error, err error) {
	if len(keys) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	if l.rows.Closed() {
		return nil, batchError(l.allFailed(OpInsert, keys, ErrClosed))
	}
	keys = slices.Clone(keys) // committed needs them
	texts, invalid := make([]string, len(keys)), failures[K, V]{loader: l, op: OpInsert}
	for i, key := range keys {
		var err error
		if _, texts[i], err = l.rows.Keys.Named(key); err != nil {
			invalid.add(key, "", err)
		}
	}
	if len(invalid.errs) > 0 {
		return nil, batchError(invalid.errs)
	}
	added, err := l.rows.Inserting(ctx, texts)
	if err != nil {
		return nil, batchError(l.allFailed(OpInsert, keys, err))
	}
	return func(ctx context.Context) error {
		failed := make(map[K]error)
		if err := added(ctx); err != nil {
			failed = l.allFailed(OpInsert, keys, err)
		}
		for key, err := range l.invalidate(ctx, OpInsert, keys) {
			joinError(failed, key, err)
		}
		return batchError(failed)
	}, nil
}

// InsertingKeys is Loader.Inserting for keys of any loaders. If this process has the loader of a
// key, and the loader has a filter, the key is added to that filter. A key of a loader without a
// filter costs nothing before the commit. A key whose loader this process does not have is added
// to no filter.
//
// committed completes the work of the filters and calls InvalidateKeys with all keys, and tries
// both even if one fails. Its error is a *BatchError[Key]. It may be called more than once.
//
// If InsertingKeys returns an error, a *BatchError[Key], do not commit. If a key is invalid
// according to Key.Check, no key is added.
func (c *Cache) InsertingKeys(ctx context.Context, keys ...Key) (committed func(context.Context) error, err error) {
	keys, added, err := c.addToFilters(ctx, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		failed := added(ctx)
		failed.joinAll(c.invalidateKeys(ctx, OpInsert, keys))
		return failed.err()
	}, nil
}

// addToFilters adds keys to the filters of their loaders. added completes that after the commit.
func (c *Cache) addToFilters(
	ctx context.Context, keys []Key,
) (accepted []Key, added func(context.Context) keyErrors, err error) {
	keys, failed := c.accept(OpInsert, keys)
	if len(failed) > 0 {
		return nil, nil, failed.err()
	}
	parts, _ := c.byLoader(slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return k.existing }))
	left := make([]func(context.Context) error, len(parts))
	for i, p := range parts {
		if left[i], err = p.loader.Inserting(ctx, p.texts()); err != nil {
			failed.addAll(OpInsert, p.keys, err)
			return nil, nil, failed.err()
		}
	}
	return keys, func(ctx context.Context) keyErrors {
		failed := make(keyErrors)
		for i, p := range parts {
			failed.addAll(OpInsert, p.keys, left[i](ctx))
		}
		return failed
	}, nil
}

func (p *part) texts() []string {
	texts := make([]string, len(p.keys))
	for i, k := range p.keys {
		texts[i] = k.Text
	}
	return texts
}
