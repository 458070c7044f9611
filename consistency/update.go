package consistency

import (
	"cmp"
	"context"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Update runs write in a transaction, commits it, and invalidates keys and those that Touch has
// added. Pass the keys of all loaders whose values depend on the rows that write changes. Pass
// also the keys of inserted rows: Update adds them to the filters of their loaders, see
// Loader.Inserting. The level of the Writer determines the guarantees. Without keys Update only
// runs the transaction.
//
// A nil error means that the transaction was committed, and that the keys were or will be
// invalidated. Failed invalidations are then in a queue that outlives the process
// (Options.OnQueued, Stats.Queued). Other errors:
//
//   - The error of write: the transaction was rolled back. If write panics or calls
//     runtime.Goexit, Update rolls back and continues the panic or the Goexit. The keys are
//     invalidated in each of these cases, because a part may have been committed, either by DDL,
//     or by a statement that was repeated after a deadlock had ended the transaction. If the
//     invalidation fails, the keys are queued. If the queue does not accept them, the error is
//     joined with ErrNotInvalidated.
//   - The error of ctx, BEGIN, an invalid key, the outbox, or a filter; with Strict also that of
//     a hold (cacheaside.ErrHoldLost, ErrRedis); after Close cacheaside.ErrClosed: not committed.
//     While Redis is down, a filter in Redis refuses keys at all levels except Async.
//   - The error of a COMMIT that PostgreSQL turns into a rollback: a serialization failure, a
//     deferred constraint (not RAISE in a constraint trigger, which is ErrUnknown), or a failed
//     statement whose error write has ignored. This is an error like one of write.
//   - ErrUnknown: COMMIT failed otherwise. The transaction may have been committed. The keys are
//     invalidated now, and once more later.
//   - ErrQueued: committed, but the invalidation failed. This process retries it while it lives.
//     Do not repeat the write.
//   - ErrNotQueued: committed, but the invalidation failed and could not be queued.
//
// The context that write receives is derived from ctx. write must use tx only, not the database;
// it must not commit, roll back, or retain tx. If ctx ends before the COMMIT, the transaction is
// rolled back when write has returned. If ctx ends later, it has no effect: the remaining steps
// have their own timeouts, of some seconds in total while Redis hangs. BEGIN, COMMIT, ROLLBACK
// and statements without a context are bounded only by the timeouts of the database driver, which
// should be set.
func (w *Writer) Update(
	ctx context.Context, write func(ctx context.Context, tx *sqlx.Tx) error, keys ...cacheaside.Key,
) error {
	level, err := w.effectiveLevel()
	if err != nil {
		return err
	}
	return (&update{core: w.core, level: level}).run(ctx, write, keys)
}

// An update is one call of Update or WriteThrough.
type update struct {
	*core
	level       Level
	touched     touched
	keys        []cacheaside.Key // all keys; set when write has returned
	tx          *sqlx.Tx         // nil before BEGIN
	hold        *cacheaside.Hold // nil at other levels, and without keys to hold
	held        []cacheaside.Key // the keys on hold
	writeCalled bool             // whether write was called
	refused     error            // the error of a filter that has not admitted the keys
	rows        []Item           // rows of the outbox, which exist if the transaction is committed
	commitSent  bool             // whether COMMIT was sent

	// afterCommit completes what admit has begun: filters get the keys for good. It also
	// invalidates the keys, except at the level Strict, where the hold does that. Nil at the level
	// Async.
	afterCommit func(context.Context) error

	// store replaces the hold by the new value. It is nil except in WriteThrough.
	store func(context.Context, *cacheaside.Hold) (stored bool)
}

// run executes the steps of a write, in the same order at all levels. If it is interrupted at any
// point, the caches end up without outdated values. The exception is a kill at the level Inline.
func (u *update) run(
	ctx context.Context, write func(context.Context, *sqlx.Tx) error, keys []cacheaside.Key,
) (err error) {
	if err := u.enter(); err != nil {
		return err
	}
	defer u.calls.Done()
	if err := cmp.Or(ctx.Err(), u.touched.add(keys)); err != nil {
		return err
	}
	passed := u.touched.keys
	defer func() {
		if !u.commitSent { // an error, a panic, or runtime.Goexit
			err = u.rollBack(ctx, err)
		}
	}()
	if err := u.holdKeys(ctx, passed); err != nil {
		return err
	}
	point("held")
	if err := u.begin(ctx); err != nil {
		return wording.Errorf("consistency: begin: %w", err)
	}
	point("begun")
	u.writeCalled = true
	if err := write(context.WithValue(ctx, touchedKey{}, &u.touched), u.tx); err != nil {
		return err
	}
	point("written")
	if err := u.prepare(ctx, len(passed)); err != nil {
		return err
	}
	return u.commit(ctx)
}

// holdKeys puts keys on hold at the level Strict, except groups.
func (u *update) holdKeys(ctx context.Context, keys []cacheaside.Key) (err error) {
	if u.level != Strict {
		return nil
	}
	keys = slices.DeleteFunc(slices.Clone(keys), func(k cacheaside.Key) bool { return k.Group })
	if len(keys) == 0 {
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
	u.held = append(u.held, keys...)
	return nil
}

// begin starts the transaction. Waiting for a connection ends with ctx. The transaction itself
// does not, unlike with database/sql, so that the update knows what has ended it.
func (u *update) begin(ctx context.Context) error {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := u.db.BeginTxx(detached, u.options.Tx)
	if !stop() {
		if err == nil {
			_ = tx.Rollback() // it may have ended already
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

// prepare executes the steps between write and COMMIT. The first passed keys were arguments of
// Update; Touch has added the others.
func (u *update) prepare(ctx context.Context, passed int) (err error) {
	if u.keys, err = u.touched.close(); err != nil {
		return err
	}
	if u.refused = u.admit(ctx); u.refused != nil {
		return u.refused
	}
	point("admitted")
	if err := u.checkOpen(ctx); err != nil {
		return err
	}
	if err := u.writeOutbox(ctx); err != nil {
		return err
	}
	point("outbox-written")
	if err := u.holdKeys(ctx, u.keys[passed:]); err != nil {
		return err
	}
	point("touched-held")
	if u.hold != nil {
		if err := u.hold.Check(ctx); err != nil {
			u.holdsLost.Add(1)
			return err
		}
	}
	point("checked")
	return ctx.Err()
}

// admit adds the keys to their filters before a reader can request the new rows. At the level
// Async a Relay does this after the commit.
func (u *update) admit(ctx context.Context) (err error) {
	switch {
	case u.level == Strict:
		u.afterCommit, err = u.internals.InsertingHeld(ctx, u.keys...)
	case u.level != Async:
		u.afterCommit, err = u.cache.InsertingKeys(ctx, u.keys...)
	}
	return err
}

// writeOutbox writes the pending invalidations into the outbox, in the transaction.
func (u *update) writeOutbox(ctx context.Context) error {
	if !u.writesOutbox() {
		return nil
	}
	rows := u.outboxItems(u.level, u.keys, u.level == Async)
	var err error
	if u.kind == sqldb.Postgres {
		tx := &openTx{Tx: u.tx}
		if err = u.outbox.PutIn(ctx, tx, rows...); err == nil && !tx.checked {
			err = tx.check(ctx)
		}
		if sqldb.SQLState(err) == postgresNoTransaction {
			err = errEnded
		}
	} else {
		err = u.outbox.PutIn(ctx, u.tx, rows...)
	}
	if err != nil {
		return err
	}
	u.rows = rows
	return nil
}

// Enqueue writes the invalidations of keys into the outbox, in a transaction that the Writer does
// not run. Pass the keys of the rows that the transaction changes. tx is an *sql.Tx, an *sqlx.Tx,
// or another type that executes statements in that transaction. Without an outbox Enqueue returns
// an error. After any error, roll back.
//
// The keys are invalidated if and only if the transaction is committed; nothing else has to be
// called. A Relay invalidates them 2 s after this call (Async: Options.AsyncDelay after it), or
// after the commit if that is later, and then adds inserted rows to the filters. To invalidate
// them earlier, also call Cache.InvalidateKeys after the commit.
func (w *Writer) Enqueue(ctx context.Context, tx sqlx.ExecerContext, keys ...cacheaside.Key) error {
	_, err := insideWriter{w.core, w.level}.Enqueue(ctx, tx, keys, true)
	return err
}

// WriteThrough is Update at the level Strict, independent of the level of w, except that it
// stores the new value of key instead of invalidating the key. write returns the value that a
// load would return after the commit. also are the other keys that the write changes; they are
// invalidated, as are those that Touch adds.
//
// The value is stored only if no other process has held or invalidated the key since before the
// transaction. Otherwise, or if Redis fails, the key is invalidated as by Update
// (Stats.NotStored). So concurrent writers of one key cannot leave an outdated value in the
// caches.
//
// WriteThrough needs Options.StrictWrites of the Cache in all processes. Use Update for a row
// that is deleted. The errors are those of Update.
func WriteThrough[K comparable, V any](
	ctx context.Context, w *Writer, l *cacheaside.Loader[K, V], key K,
	write func(ctx context.Context, tx *sqlx.Tx) (V, error), also ...cacheaside.Key,
) error {
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
