package cacheaside

import (
	"context"
	"errors"
	"slices"
)

// Inserting is for the insertion of rows, so that reads find them at once: a filter
// (LoaderOptions.Filter) must know their keys before anybody can ask for them, and their absence
// may be cached. Call Inserting before the transaction commits, with the keys that the transaction
// inserts; if it returns an error, do not commit. When the transaction has been committed, call
// committed. Once committed has returned nil, every read that begins then finds the rows, here and
// in other processes: as after Invalidate, whose bounds for the memory of other processes hold.
// With a filter that is a copy in each process, the filter's own bound holds, too, unless they read
// with Fresh.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	committed, err := users.Inserting(ctx, id)
//	if err != nil {
//		tx.Rollback()
//		return err
//	}
//	if _, err := tx.ExecContext(ctx, "INSERT INTO users …", id, name); err != nil {
//		tx.Rollback() // nothing else is to be done
//		return err
//	}
//	if err := tx.Commit(); err != nil {
//		return err // if it may have been committed, call committed
//	}
//	// the row is there: if this fails, call committed again, not the INSERT
//	return committed(context.WithoutCancel(ctx))
//
// Where the database makes the key, as by AUTO_INCREMENT, call Inserting between the INSERT and the
// Commit. If the transaction is not committed nothing is wrong: the filter lets the keys through,
// until it is rebuilt. committed may be called again, after an error or not, and by several
// goroutines. It tries the filter's part and the Invalidate, whatever the other does. Until
// committed has returned nil, a read may not find the row: the cached absence may be served until
// its TTL, and a filter that is being rebuilt may hide the row until it is rebuilt again.
//
// Without a filter, Inserting does nothing, and committed is Invalidate. Errors are *Errors of the
// keys, one or joined. A key that has no text is such an error, and then none is added.
func (l *Loader[K, V]) Inserting(ctx context.Context, keys ...K) (committed func(context.Context) error, err error) {
	if l.rows.Closed() {
		return nil, l.wrapAll("inserting", keys, ErrClosed)
	}
	keys = slices.Clone(keys) // committed needs them
	texts, errs := make([]string, len(keys)), []error(nil)
	for i, key := range keys {
		var err error
		if _, texts[i], err = l.rows.Keys.Named(key); err != nil {
			errs = append(errs, l.wrapText("inserting", "", err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	added, err := l.rows.Inserting(ctx, texts)
	if err != nil {
		return nil, l.wrapAll("inserting", keys, err)
	}
	return func(ctx context.Context) error {
		var shown error
		if err := added(ctx); err != nil {
			shown = l.wrapAll("inserting", keys, err)
		}
		return errors.Join(shown, l.invalidate(ctx, "inserting", keys))
	}, nil
}

// InsertingKeys is Loader.Inserting for keys of any loaders: keys whose loader this process has,
// with a filter, are added to that filter. committed is then InvalidateKeys of all keys, and what
// their filters have left to do, both tried; its error is a *BatchError[Key], and it may be called
// again. A key of a loader without a filter costs nothing before the commit. No filter hears of a
// key whose loader this process does not have.
//
// If InsertingKeys returns an error, a *BatchError[Key], do not commit. If a key cannot be one, as
// Key.Check tells, none is added.
func (c *Cache) InsertingKeys(ctx context.Context, keys ...Key) (committed func(context.Context) error, err error) {
	keys, added, err := c.addToFilters(ctx, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		failed := added(ctx)
		failed.joinAll(c.invalidateKeys(ctx, "inserting", keys))
		return failed.err()
	}, nil
}

// addToFilters adds keys to the filters. added finishes that.
func (c *Cache) addToFilters(ctx context.Context, keys []Key) (accepted []Key, added func(context.Context) keyErrors, err error) {
	keys, failed := c.accept("inserting", keys)
	if len(failed) > 0 {
		return nil, nil, failed.err()
	}
	parts, _ := c.byLoader(slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return k.existing }))
	left := make([]func(context.Context) error, len(parts))
	for i, p := range parts {
		if left[i], err = p.loader.Inserting(ctx, p.texts()); err != nil {
			failed.addAll("inserting", p.keys, err)
			return nil, nil, failed.err()
		}
	}
	return keys, func(ctx context.Context) keyErrors {
		failed := make(keyErrors)
		for i, p := range parts {
			failed.addAll("inserting", p.keys, left[i](ctx))
		}
		return failed
	}, nil
}

func (s *sameLoader) texts() []string {
	texts := make([]string, len(s.keys))
	for i, k := range s.keys {
		texts[i] = k.Text
	}
	return texts
}
