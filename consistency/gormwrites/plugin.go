package gormwrites

import (
	"context"
	"fmt"
	"sync"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/rowkeys"
)

// Options are the settings of a Plugin. The zero value, and nil, are good defaults.
type Options struct {
	// RefuseRaw makes Exec, and Raw with a statement that changes rows, return an error, unless the
	// statement has Touches. Default: such a statement invalidates all keys of all bound loaders.
	RefuseRaw bool
}

// Stats are the counters of a Plugin since it was made.
type Stats struct {
	Statements int64 // statements by models that changed bound tables
	Whole      int64 // statements that invalidated all keys of at least one loader
	Raw        int64 // statements of Exec and Raw that change rows, with and without Touches
	Refused    int64 // statements that were not executed, or rolled back, because of RefuseRaw or a filter
}

// A Plugin puts the keys of the rows that GORM changes into an outbox. Pass it to gorm.DB.Use. It
// is safe for concurrent use.
type Plugin struct {
	tables  *rowkeys.Tables
	options Options

	// pending are those of the transactions that GORM or the Plugin has started for one call, by
	// gorm.ConnPool. Their keys are invalidated directly after the commit.
	pending sync.Map
}

// New returns a Plugin for the database of w, which must have an outbox, except for writes in
// Update. bindings are made by canal.Bind and canal.BindGroup; any other Binding is an error. The
// loaders must be bound to all tables that their values are read from. nil options are the
// defaults.
func New(w *consistency.Writer, bindings []canal.Binding, options *Options) (*Plugin, error) {
	tables, err := rowkeys.New(w, bindings)
	if err != nil {
		return nil, fmt.Errorf("gormwrites: %w", err)
	}
	p := &Plugin{tables: tables}
	if options != nil {
		p.options = *options
	}
	return p, nil
}

// Stats returns the counters. It does no I/O.
func (p *Plugin) Stats() Stats { return Stats(p.tables.Stats()) }

// Name implements gorm.Plugin.
func (p *Plugin) Name() string { return "cacheaside:gormwrites" }

// Initialize implements gorm.Plugin. It wraps the callbacks that execute statements. Plugins that
// replace the same callbacks must be used before.
func (p *Plugin) Initialize(db *gorm.DB) error {
	c := db.Callback()
	for _, wrapped := range []struct {
		get     func(name string) func(*gorm.DB)
		replace func(name string, f func(*gorm.DB)) error
		name    string
		by      func(*gorm.DB, func(*gorm.DB))
		absent  bool // may be absent
	}{
		{c.Create().Get, c.Create().Replace, "gorm:create", p.create, false},
		{c.Update().Get, c.Update().Replace, "gorm:update", p.update, false},
		{c.Delete().Get, c.Delete().Replace, "gorm:delete", p.delete, false},
		{c.Raw().Get, c.Raw().Replace, "gorm:raw", p.exec, false},
		{c.Row().Get, c.Row().Replace, "gorm:row", p.query, false},
		{c.Query().Get, c.Query().Replace, "gorm:query", p.query, false},
		{c.Create().Get, c.Create().Replace, begin, p.begin, true},
		{c.Update().Get, c.Update().Replace, begin, p.begin, true},
		{c.Delete().Get, c.Delete().Replace, begin, p.begin, true},
		{c.Create().Get, c.Create().Replace, end, p.end, true},
		{c.Update().Get, c.Update().Replace, end, p.end, true},
		{c.Delete().Get, c.Delete().Replace, end, p.end, true},
	} {
		original := wrapped.get(wrapped.name)
		switch {
		case original == nil && wrapped.absent: // SkipDefaultTransaction
			continue
		case original == nil:
			return fmt.Errorf("gormwrites: GORM has no callback %s", wrapped.name)
		}
		if err := wrapped.replace(wrapped.name, func(db *gorm.DB) { wrapped.by(db, original) }); err != nil {
			return fmt.Errorf("gormwrites: %w", err)
		}
	}
	return nil
}

// GORM's callbacks that begin and end its default transaction.
const (
	begin   = "gorm:begin_transaction"
	end     = "gorm:commit_or_rollback_transaction"
	started = "gorm:started_transaction" // the setting of a statement that has begun one
)

// begin registers a default transaction of GORM for pending keys.
func (p *Plugin) begin(db *gorm.DB, original func(*gorm.DB)) {
	original(db)
	if _, ok := db.InstanceGet(started); ok && db.Error == nil {
		p.pending.Store(db.Statement.ConnPool, &pending{})
	}
}

// end invalidates the keys of a default transaction after its commit.
func (p *Plugin) end(db *gorm.DB, original func(*gorm.DB)) {
	pool := db.Statement.ConnPool
	_, own := db.InstanceGet(started)
	original(db)
	if own {
		p.finish(db, pool)
	}
}

// finish invalidates the keys of a transaction that has ended, unless db has an error: the Relay
// then finds the keys if the transaction was committed.
func (p *Plugin) finish(db *gorm.DB, pool gorm.ConnPool) {
	if rows, ok := p.pending.LoadAndDelete(pool); ok && db.Error == nil {
		p.tables.Committed(db.Statement.Context, rows.(*pending).rows)
	}
}

// pending are the rows of the outbox of a transaction, which one goroutine uses.
type pending struct{ rows []consistency.Item }

// inTransaction runs f, which executes statements of db, in the transaction of db. If db has none,
// it begins one, and commits it unless db has an error afterwards.
func (p *Plugin) inTransaction(db *gorm.DB, f func()) {
	outer := db.Statement.ConnPool
	if _, ok := outer.(gorm.TxCommitter); ok {
		f()
		return
	}
	tx := db.Begin()
	if tx.Error != nil {
		_ = db.AddError(fmt.Errorf("gormwrites: begin: %w", tx.Error))
		return
	}
	pool := tx.Statement.ConnPool
	committer := pool.(gorm.TxCommitter)
	p.pending.Store(pool, &pending{})
	db.Statement.ConnPool = pool
	committed := false
	defer func() {
		db.Statement.ConnPool = outer
		if !committed {
			_ = committer.Rollback()
			p.pending.Delete(pool)
		}
	}()
	if f(); db.Error != nil {
		return
	}
	committed = true
	_ = db.AddError(committer.Commit())
	p.finish(db, pool)
}

// touch puts keys into the outbox, or adds them to the Update that the transaction of db belongs
// to.
func (p *Plugin) touch(db *gorm.DB, keys []cacheaside.Key) {
	if len(keys) == 0 || db.Error != nil {
		return
	}
	pool := db.Statement.ConnPool
	inner := pool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		inner = prepared.Tx // the statements of the outbox are not worth preparing
	}
	if u, ok := inner.(*updateTx); ok {
		_ = db.AddError(consistency.Touch(u.ctx, keys...))
		return
	}
	own, committed := p.pending.Load(pool)
	rows, err := p.tables.Enqueue(db.Statement.Context, inner, keys, committed)
	if err != nil {
		_ = db.AddError(fmt.Errorf("gormwrites: %w", err))
		return
	}
	if committed {
		set := own.(*pending)
		set.rows = append(set.rows, rows...)
	}
}

// updateTx is the transaction of Update.
type updateTx struct {
	*sqlx.Tx
	ctx context.Context
}

// Update runs write in a transaction of w, by w.Update, and passes it a session of db in that
// transaction. The keys of the rows that write changes through GORM are those of the Update, in
// addition to keys, so the level of w applies (consistency.Level). db must be a database with a
// Plugin, and the database of w. The errors are those of Writer.Update.
//
// At the level Strict, keys that are only known inside the transaction are held from then on. Pass
// the others as keys.
func Update(
	ctx context.Context, w *consistency.Writer, db *gorm.DB, write func(tx *gorm.DB) error, keys ...cacheaside.Key,
) error {
	return w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		session := db.Session(&gorm.Session{NewDB: true, Context: ctx})
		session.Statement.ConnPool = &updateTx{tx, ctx}
		return write(session)
	}, keys...)
}

// touchesKey is the setting of a statement with the keys of Touches.
const touchesKey = "cacheaside:gormwrites:touches"

// Touches names the keys of the rows that a statement changes. With Exec and Raw, and with a
// statement whose rows the Plugin cannot know, no other keys are invalidated; without keys, none.
// Otherwise these keys are invalidated in addition to those of the changed rows.
//
//	db.Scopes(gormwrites.Touches(users.Key(7))).Exec("UPDATE users SET visits = 0 WHERE id = 7")
func Touches(keys ...cacheaside.Key) func(*gorm.DB) *gorm.DB {
	return func(db *gorm.DB) *gorm.DB { return db.Set(touchesKey, keys) }
}

// touched returns the keys of Touches, and whether a statement has Touches.
func touched(db *gorm.DB) ([]cacheaside.Key, bool) {
	v, ok := db.Get(touchesKey)
	keys, _ := v.([]cacheaside.Key)
	return keys, ok
}
