package entwrites

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/rowkeys"
)

// A transaction executes statements and puts the keys of their rows into the outbox. One goroutine
// uses it.
type transaction struct {
	dialect.Tx
	driver  *Driver
	ctx     context.Context
	ends    bool // with the rows of a query
	touches bool // it belongs to Update
	rows    []consistency.Item
	failed  error // of work that no caller could be told of; the transaction must not be committed
}

// Commit implements dialect.Tx.
func (t *transaction) Commit() error {
	if t.failed != nil {
		return errors.Join(t.failed, t.Tx.Rollback())
	}
	err := t.Tx.Commit()
	if err == nil {
		t.driver.tables.Committed(t.ctx, t.rows)
	}
	return err
}

// Exec implements dialect.Tx.
func (t *transaction) Exec(ctx context.Context, text string, args, v any) error {
	if !t.driver.changes(text) {
		return t.Tx.Exec(ctx, text, args, v)
	}
	list, ok := args.([]any)
	if !ok {
		return fmt.Errorf("entwrites: the arguments are a %T", args)
	}
	s := t.statement(ctx, text, list)
	var result sql.Result
	err := s.run(func(text string, args []any) error { return t.Tx.Exec(ctx, text, args, &result) }, func() sql.Result {
		return result
	})
	if target, ok := v.(*sql.Result); ok {
		*target = result
	}
	return err
}

// Query implements dialect.Tx.
func (t *transaction) Query(ctx context.Context, text string, args, v any) error {
	if !t.driver.changes(text) {
		return t.Tx.Query(ctx, text, args, v)
	}
	list, ok := args.([]any)
	target, isRows := v.(*entsql.Rows)
	if !ok || !isRows {
		return fmt.Errorf("entwrites: a query with a %T and a %T", args, v)
	}
	s := t.statement(ctx, text, list)
	if s.verb != "INSERT" || s.upsert || len(s.key) == 0 {
		keys, err := s.whole(true)
		if err == nil {
			err = t.touch(ctx, keys)
		}
		if err != nil {
			return err
		}
		s = nil
	}
	var rows entsql.Rows
	if err := t.Tx.Query(ctx, text, list, &rows); err != nil {
		return err
	}
	target.ColumnScanner = &returned{ColumnScanner: rows.ColumnScanner, tx: t, s: s}
	return nil
}

// ExecContext is the method of the feature sql/execquery.
func (t *transaction) ExecContext(ctx context.Context, text string, args ...any) (r sql.Result, err error) {
	return r, t.Exec(ctx, text, args, &r)
}

// QueryContext is the method of the feature sql/execquery.
func (t *transaction) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if t.driver.changes(text) {
		keys, err := t.statement(ctx, text, args).whole(true)
		if err == nil {
			err = t.touch(ctx, keys)
		}
		if err != nil {
			return nil, err
		}
	}
	var rows entsql.Rows
	if err := t.Tx.Query(ctx, text, args, &rows); err != nil {
		return nil, err
	}
	return plain(rows)
}

// statement returns a statement that changes rows.
func (t *transaction) statement(ctx context.Context, text string, args []any) *statement {
	s := &statement{query: parse(text, args), ctx: ctx, tx: t}
	if s.verb == "" {
		t.driver.tables.CountRaw()
		return s
	}
	t.driver.tables.CountStatement()
	s.bound = t.driver.tables.Table(s.table)
	s.key = t.driver.keys[s.table]
	return s
}

// touch puts keys into the outbox, or adds them to the Update that the transaction belongs to.
func (t *transaction) touch(ctx context.Context, keys []cacheaside.Key) error {
	if len(keys) == 0 {
		return nil
	}
	if t.touches {
		return consistency.Touch(t.ctx, keys...)
	}
	rows, err := t.driver.tables.Enqueue(ctx, execer{t.Tx}, keys, true)
	if err != nil {
		return fmt.Errorf("entwrites: %w", err)
	}
	t.rows = append(t.rows, rows...)
	return nil
}

// execer executes the statements of the outbox.
type execer struct{ tx dialect.Tx }

// ExecContext implements sqlx.ExecerContext.
func (e execer) ExecContext(ctx context.Context, text string, args ...any) (r sql.Result, err error) {
	if args == nil {
		args = []any{}
	}
	return r, e.tx.Exec(ctx, text, args, &r)
}

// returned are the rows of a query that changes rows. When the last of them has been read, it
// completes the statement, and commits the transaction if that was begun for the query.
type returned struct {
	entsql.ColumnScanner
	tx   *transaction
	s    *statement // an INSERT; nil: its keys are known
	keys []rowkeys.Row
	done bool
	err  error
}

// Next implements entsql.ColumnScanner.
func (r *returned) Next() bool {
	if r.done {
		return false
	}
	if r.ColumnScanner.Next() {
		r.err = errors.Join(r.err, r.keep())
		return r.err == nil
	}
	r.finish(r.ColumnScanner.Err())
	return false
}

// keep keeps the primary key of a row.
func (r *returned) keep() error {
	if r.s == nil || len(r.s.key) != 1 {
		return nil
	}
	names, err := r.Columns()
	if err != nil {
		return err
	}
	values, targets := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		targets[i] = &values[i]
	}
	if err := r.Scan(targets...); err != nil {
		return err
	}
	for i, n := range names {
		if n == r.s.key[0] {
			r.keys = append(r.keys, rowkeys.Row{Key: []any{values[i]}, Text: fmt.Sprintf("%q", values[i])})
		}
	}
	return nil
}

// finish ends the statement, once.
func (r *returned) finish(err error) {
	if r.done {
		return
	}
	r.done = true
	err = errors.Join(r.err, err, r.ColumnScanner.Close())
	if err == nil && r.s != nil {
		err = r.s.inserted(r.keys)
	}
	switch {
	case !r.tx.ends:
		r.tx.failed = errors.Join(r.tx.failed, err)
	case err != nil:
		err = errors.Join(err, r.tx.Rollback())
	default:
		err = r.tx.Commit()
	}
	r.err = err
}

// Err implements entsql.ColumnScanner.
func (r *returned) Err() error { return r.err }

// Close implements entsql.ColumnScanner. If the rows were not read to their end, a transaction that
// was begun for the query is rolled back.
func (r *returned) Close() error {
	if !r.done && r.tx.ends {
		r.finish(errors.New("entwrites: the rows of the statement were not read to their end"))
	} else {
		r.finish(nil)
	}
	return r.err
}

// A statement is one that changes rows in a transaction.
type statement struct {
	query
	ctx   context.Context
	tx    *transaction
	bound *rowkeys.Table // nil: the table is not known
	key   []string       // the columns of the primary key; none: not known
}

// whole returns all keys of the loaders. adds reports whether the statement may add keys that a
// filter has to admit.
func (s *statement) whole(adds bool) (keys []cacheaside.Key, err error) {
	if named, ok := touched(s.ctx); ok {
		return named, nil
	}
	if s.bound == nil {
		keys, err = s.tx.driver.tables.Whole(adds)
	} else {
		keys, err = s.bound.Whole(adds)
	}
	if err != nil {
		return nil, fmt.Errorf("entwrites: %w", err)
	}
	return keys, nil
}

// touch puts the keys of changes into the outbox. If they are not complete, all keys of the loaders
// take their place.
func (s *statement) touch(changes []event.Change, complete bool) error {
	if !complete {
		keys, err := s.whole(true)
		if err != nil {
			return err
		}
		return s.tx.touch(s.ctx, keys)
	}
	keys, err := s.bound.Keys(changes)
	if err != nil {
		return fmt.Errorf("entwrites: %w", err)
	}
	named, _ := touched(s.ctx)
	return s.tx.touch(s.ctx, append(keys, named...))
}
