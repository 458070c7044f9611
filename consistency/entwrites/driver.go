package entwrites

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/schema"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/rowkeys"
)

// Stats are the counters of a Driver since it was made.
type Stats struct {
	Statements int64 // statements that changed bound tables
	Whole      int64 // statements that invalidated all keys of at least one loader
	Raw        int64 // statements whose table is not known
	Refused    int64 // statements that were not executed, or rolled back
}

// A Driver is a dialect.Driver that puts the keys of the rows that ent changes into an outbox. It
// is safe for concurrent use. Closing it closes the driver that it wraps.
type Driver struct {
	dialect.Driver
	tables *rowkeys.Tables
	keys   map[string][]string // the columns of the primary keys by table
}

var _ dialect.Driver = (*Driver)(nil)

// New returns a Driver for the database of w, which must have an outbox, except for writes in
// Update. Pass it to the generated client (ent.Driver). tables are the generated migrate.Tables,
// from which the Driver takes the primary keys. bindings are made by canal.Bind and
// canal.BindGroup; any other Binding is an error. The loaders must be bound to all tables that
// their values are read from.
func New(
	drv dialect.Driver, w *consistency.Writer, tables []*schema.Table, bindings []canal.Binding,
) (*Driver, error) {
	if drv == nil {
		return nil, errors.New("entwrites: the driver is nil")
	}
	bound, err := rowkeys.New(w, bindings)
	if err != nil {
		return nil, fmt.Errorf("entwrites: %w", err)
	}
	d := &Driver{Driver: drv, tables: bound, keys: map[string][]string{}}
	for _, t := range tables {
		for _, c := range t.PrimaryKey {
			d.keys[t.Name] = append(d.keys[t.Name], c.Name)
		}
	}
	return d, nil
}

// Stats returns the counters. It does no I/O.
func (d *Driver) Stats() Stats { return Stats(d.tables.Stats()) }

// Tx implements dialect.Driver. After the commit, the keys of the transaction are invalidated.
func (d *Driver) Tx(ctx context.Context) (dialect.Tx, error) {
	tx, err := d.Driver.Tx(ctx)
	if err != nil {
		return nil, err
	}
	return &transaction{Tx: tx, driver: d, ctx: ctx}, nil
}

// BeginTx is Tx with options.
func (d *Driver) BeginTx(ctx context.Context, o *sql.TxOptions) (dialect.Tx, error) {
	beginner, ok := d.Driver.(interface {
		BeginTx(context.Context, *sql.TxOptions) (dialect.Tx, error)
	})
	if !ok {
		return nil, errors.New("entwrites: the driver has no BeginTx")
	}
	tx, err := beginner.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return &transaction{Tx: tx, driver: d, ctx: ctx}, nil
}

// Exec implements dialect.Driver. A statement that changes rows is executed in a transaction.
func (d *Driver) Exec(ctx context.Context, text string, args, v any) error {
	if !d.changes(text) {
		return d.Driver.Exec(ctx, text, args, v)
	}
	tx, err := d.Tx(ctx)
	if err != nil {
		return err
	}
	if err := tx.Exec(ctx, text, args, v); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Query implements dialect.Driver. A statement that changes rows is executed in a transaction,
// which is committed when its last row has been read.
func (d *Driver) Query(ctx context.Context, text string, args, v any) error {
	if !d.changes(text) {
		return d.Driver.Query(ctx, text, args, v)
	}
	tx, err := d.Tx(ctx)
	if err != nil {
		return err
	}
	t := tx.(*transaction)
	t.ends = true
	if err := t.Query(ctx, text, args, v); err != nil {
		return errors.Join(err, t.Rollback())
	}
	return nil
}

// ExecContext is the method of the feature sql/execquery.
func (d *Driver) ExecContext(ctx context.Context, text string, args ...any) (r sql.Result, err error) {
	return r, d.Exec(ctx, text, args, &r)
}

// QueryContext is the method of the feature sql/execquery. A statement that changes rows is an
// error, because it needs a transaction.
func (d *Driver) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if d.changes(text) {
		return nil, d.tables.Refuse(errors.New("entwrites: QueryContext with a statement that changes rows needs a " +
			"transaction, so that it is committed together with the keys of its rows"))
	}
	var rows entsql.Rows
	if err := d.Driver.Query(ctx, text, args, &rows); err != nil {
		return nil, err
	}
	return plain(rows)
}

// changes reports whether a statement may change rows that keys depend on.
func (d *Driver) changes(text string) bool {
	if !rowkeys.ChangesRows(text) {
		return false
	}
	q := parse(text, nil)
	return q.verb == "" || d.tables.Table(q.table) != nil
}

// plain returns the rows of database/sql.
func plain(rows entsql.Rows) (*sql.Rows, error) {
	if r, ok := rows.ColumnScanner.(*sql.Rows); ok {
		return r, nil
	}
	_ = rows.Close()
	return nil, fmt.Errorf("entwrites: the driver returns rows of the type %T", rows.ColumnScanner)
}

// Update runs write in a transaction of w, by w.Update, and passes it a driver in that transaction,
// for a client of its own: ent.NewClient(ent.Driver(tx)). d is a driver of New, for the database of
// w. The keys of the rows that write changes through ent are those of the Update, in addition to
// keys, so the level of w applies (consistency.Level). Transactions of that client are part of the
// Update: their Commit and Rollback do nothing. The errors are those of Writer.Update.
//
// At the level Strict, keys that are only known inside the transaction are held from then on. Pass
// the others as keys.
func Update(
	ctx context.Context, w *consistency.Writer, d *Driver, write func(ctx context.Context, tx dialect.Driver) error,
	keys ...cacheaside.Key,
) error {
	return w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		inner := entsql.NewDriver(d.Dialect(), entsql.Conn{ExecQuerier: tx})
		return write(ctx, &updateDriver{&transaction{Tx: dialect.NopTx(inner), driver: d, ctx: ctx, touches: true}, d})
	}, keys...)
}

// updateDriver is the driver of Update, which is its own transaction.
type updateDriver struct {
	*transaction
	outer *Driver
}

// Tx implements dialect.Driver.
func (u *updateDriver) Tx(context.Context) (dialect.Tx, error) { return u.transaction, nil }

// Close implements dialect.Driver. It does nothing.
func (u *updateDriver) Close() error { return nil }

// Dialect implements dialect.Driver.
func (u *updateDriver) Dialect() string { return u.outer.Dialect() }

type touchesKey struct{}

// Touches returns a context that names the keys of the rows that its statements change. With SQL
// whose rows the Driver cannot know, no other keys are invalidated; without keys, none. Otherwise
// these keys are invalidated in addition to those of the changed rows.
func Touches(ctx context.Context, keys ...cacheaside.Key) context.Context {
	return context.WithValue(ctx, touchesKey{}, keys)
}

// touched returns the keys of Touches, and whether ctx has Touches.
func touched(ctx context.Context) ([]cacheaside.Key, bool) {
	keys, ok := ctx.Value(touchesKey{}).([]cacheaside.Key)
	return keys, ok
}
