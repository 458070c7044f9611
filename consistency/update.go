package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Update runs write in a transaction, commits it, and invalidates keys and those that Touch has
// added. Pass the keys of all loaders that show what write changes, also of rows that it inserts
// (whose filters then know them, see Loader.Inserting). The Writer's level says how far Update goes
// for that. Without keys Update is a mere transaction.
//
// nil means that the transaction was committed, and that the caches are told, or will be, come what
// may: invalidations that could not be done at once are in a queue that outlives the process
// (Options.OnQueued, Stats.Queued). Other errors:
//
//   - that of write, as it is: rolled back. If write panics or calls runtime.Goexit, so does
//     Update, after it has rolled back. The keys are invalidated all the same, for a part may have
//     been committed: by DDL, or by a statement that was tried again after a deadlock, which had
//     ended the transaction. If the invalidation fails the keys are in the queue; if they cannot be
//     queued, the error is joined with ErrNotQueued.
//   - ctx's, those of BEGIN, of a key that is none, of the outbox, of a filter that a key's loader
//     has (one in Redis cannot be told of rows while Redis is out, at levels but Async); of a hold
//     (cacheaside.ErrHoldLost, ErrRedis) with Strict; cacheaside.ErrClosed: not committed.
//   - ErrUnknown: COMMIT failed. The transaction may have been committed, so the keys are
//     invalidated, now and once more.
//   - ErrQueued: committed, but the invalidation failed. This process tries it again, as long as
//     the process lives. Do not write again.
//   - ErrNotQueued: not even that.
//
// write gets a ctx made from ctx, and uses tx only, not the database; it neither commits nor rolls
// back, and does not keep tx. If ctx ends before the COMMIT, the transaction is rolled back when
// write has returned. If ctx ends later, nothing changes: the rest has time-outs of its own, of
// some seconds in all while Redis hangs. Statements that are given no context, BEGIN, COMMIT and
// ROLLBACK are bounded by the database driver only: set its time-outs.
func (w *Writer) Update(ctx context.Context, write func(ctx context.Context, tx *sqlx.Tx) error, keys ...cacheaside.Key) error {
	level, err := w.itsLevel()
	if err != nil {
		return err
	}
	return (&update{core: w.core, level: level}).run(ctx, write, keys)
}

// update is one write.
type update struct {
	*core
	level    Level
	touched  touched
	keys     []cacheaside.Key // all of them, when write has returned
	tx       *sqlx.Tx         // nil: it has not begun
	hold     *cacheaside.Hold // nil: there is none
	held     int              // so many of keys, the first of them, are on hold
	called   bool             // write was
	refused  error            // of a filter that does not take the keys
	admitted func(context.Context) error
	rows     []Item // of the outbox, there if the transaction is committed
	over     bool   // COMMIT was sent

	// store is that of a WriteThrough: it puts the new value in the place of the hold.
	store func(context.Context, *cacheaside.Hold) (stored bool)
}

// run is the order of all writes. Wherever it is cut off, the caches end up with nothing outdated
// (at the level Inline: unless a kill cuts it off).
func (u *update) run(ctx context.Context, write func(context.Context, *sqlx.Tx) error, keys []cacheaside.Key) (err error) {
	if err := u.enter(); err != nil {
		return err
	}
	defer u.under.Done()
	if err := cmp.Or(ctx.Err(), u.touched.add(keys)); err != nil {
		return err
	}
	given := u.touched.keys
	defer func() {
		if !u.over { // an error, a panic, or runtime.Goexit
			err = u.rollBack(ctx, err)
		}
	}()
	if err := u.keep(ctx, given); err != nil {
		return err
	}
	point("held")
	if err := u.begin(ctx); err != nil {
		return fmt.Errorf("consistency: begin: %w", err)
	}
	point("begun")
	u.called = true
	if err := write(context.WithValue(ctx, touchedKey{}, &u.touched), u.tx); err != nil {
		return err
	}
	point("written")
	if err := u.prepare(ctx, len(given)); err != nil {
		return err
	}
	return u.commit(ctx)
}

// keep puts keys on hold, at the levels that do.
func (u *update) keep(ctx context.Context, keys []cacheaside.Key) (err error) {
	if u.level != Strict || len(keys) == 0 {
		return nil
	}
	if u.hold == nil {
		u.hold, err = u.cache.Hold(ctx, keys...)
	} else {
		err = u.hold.Add(ctx, keys...)
	}
	if err != nil {
		u.holdsRefused.Add(1)
		return err
	}
	u.held += len(keys)
	return nil
}

// begin waits for a connection no longer than ctx. But once the transaction has begun it does not
// end with ctx by itself, as database/sql would have it: so it is known what has ended it.
func (u *update) begin(ctx context.Context) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := u.db.BeginTxx(own, u.options.Tx)
	if !stop() {
		if err == nil {
			_ = tx.Rollback() // it may be already
		}
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return err
	}
	u.tx = tx
	return nil
}

// prepare is what goes before the COMMIT. The first of the keys were given to Update.
func (u *update) prepare(ctx context.Context, given int) (err error) {
	if u.keys, err = u.touched.end(); err != nil {
		return err
	}
	if u.refused = u.admit(ctx); u.refused != nil {
		return u.refused
	}
	point("admitted")
	if err := u.intend(ctx); err != nil {
		return err
	}
	point("intended")
	if err := u.keep(ctx, u.keys[given:]); err != nil {
		return err
	}
	point("kept")
	if u.hold != nil {
		if err := u.hold.Check(ctx); err != nil {
			u.holdsLost.Add(1)
			return err
		}
	}
	point("checked")
	return ctx.Err()
}

// admit tells the filters of the keys before anybody can ask for their rows. At the level Async a
// Relay does so, after the commit.
func (u *update) admit(ctx context.Context) (err error) {
	switch {
	case u.level == Strict:
		u.admitted, err = u.inside.AdmitHeld(ctx, u.keys...)
	case u.level != Async:
		u.admitted, err = u.cache.InsertingKeys(ctx, u.keys...)
	}
	return err
}

// intend writes into the outbox what is to be invalidated, in the transaction.
func (u *update) intend(ctx context.Context) error {
	if u.level == Inline || u.outbox == nil || len(u.keys) == 0 {
		return nil
	}
	rows := u.items(u.level, u.keys, u.level == Async)
	tx := sqlx.ExecerContext(u.tx)
	var err error
	if o, ok := u.outbox.(*SQLOutbox); ok {
		err = o.putIn(ctx, tx, rows, false)
	} else {
		err = u.outbox.PutIn(ctx, tx, rows...)
	}
	if err != nil {
		return err
	}
	u.rows = rows
	return nil
}

// Enqueue is for transactions of your own. Call it in one, with the keys of the rows that the
// transaction changes: they are invalidated when the transaction has been committed, whatever
// happens then, and only then. tx is an *sql.Tx, *sqlx.Tx, or whatever else takes statements of
// that transaction. Enqueue writes into the outbox; without one it returns an error. After an
// error, roll back. Nothing else need be called: a Relay invalidates the keys 2 s after this call
// (Async: Options.AsyncDelay after), or when the transaction has been committed, if that is later,
// and then has the filters know of inserted rows. To have it sooner, call Cache.InvalidateKeys,
// too, after the commit.
func (w *Writer) Enqueue(ctx context.Context, tx sqlx.ExecerContext, keys ...cacheaside.Key) error {
	if w.outbox == nil {
		return fmt.Errorf("consistency: Enqueue: %w", errNoOutbox)
	}
	if tx == nil {
		return errors.New("consistency: Enqueue: the transaction is nil")
	}
	if err := w.enter(); err != nil {
		return err
	}
	defer w.under.Done()
	var t touched
	if err := t.add(keys); err != nil || len(t.keys) == 0 {
		return err
	}
	return w.outbox.PutIn(ctx, tx, w.items(w.level, t.keys, true)...)
}

// WriteThrough is Update at the level Strict, whatever the level of w, but the caches show the new
// value of key at once instead of forgetting the key: write returns the value that a load would
// return once the transaction is committed. The value is stored only if nobody else has held or
// invalidated the key since before the transaction; else, and if Redis fails just then, the key is
// invalidated as by Update (Stats.NotStored). So of two writers of one key neither can leave the
// other's value in the caches. also are the other keys that the write changes, which are
// invalidated, as are those that Touch adds.
//
// WriteThrough needs Options.StrictWrites of the Cache, in all processes. For a row that is deleted
// use Update. The errors are those of Update.
func WriteThrough[K comparable, V any](ctx context.Context, w *Writer, l *cacheaside.Loader[K, V], key K, write func(ctx context.Context, tx *sqlx.Tx) (V, error), also ...cacheaside.Key) error {
	var value V
	u := &update{core: w.core, level: Strict, store: func(ctx context.Context, h *cacheaside.Hold) bool {
		stored, err := writeside.Of(l).StoreHeld(ctx, h, key, value)
		return stored && err == nil
	}}
	return u.run(ctx, func(ctx context.Context, tx *sqlx.Tx) (err error) {
		value, err = write(ctx, tx)
		return err
	}, append([]cacheaside.Key{l.Key(key)}, also...))
}
