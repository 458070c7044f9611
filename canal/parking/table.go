package parking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/internal/storage"
	"github.com/cacheaside/cacheaside/internal/plainjson"
)

// TableOptions are the settings of a Table. nil, and the zero value, are good defaults.
type TableOptions struct {
	// Table holds what is parked. Of MySQL it may be given as schema.table. Default:
	// "cacheaside_parked".
	Table string
}

// Table is a Parking in a table of a database, for programs without a disk of their own. The table
// shows rows in clear. It is safe for concurrent use by any number of processes.
//
// Once what was wrong is mended, List gives what is parked, and Remove removes what was dealt with:
// for a handler by calling it with Parked.Change, or better with the row as it is by now, for later
// changes of it were not held up; for a filter by adding the key, or by a Rebuild.
type Table struct{ table storage.Table }

// Row is a row of a Table.
type Row struct {
	ID     int64 // the time in microseconds since 1970, or a little more, where several were parked at one
	Parked Parked
	Err    error // it cannot be read: Parked is empty
}

const (
	maxList   = 1000
	maxRemove = 500
)

// NewTable keeps what is parked in a table of db, which stays the caller's. It sends nothing. It is
// known to work with MySQL, MariaDB and SQLite; of the driver's name it is told which placeholders
// are to be used (see sqlx.BindType).
func NewTable(db *sqlx.DB, options *TableOptions) (*Table, error) {
	var o TableOptions
	if options != nil {
		o = *options
	}
	p := &Table{storage.Table{DB: db, Name: cmp.Or(o.Table, "cacheaside_parked")}}
	switch {
	case db == nil || db.DB == nil:
		return nil, errors.New("canal: parking.NewTable: db is nil")
	case !storage.TableName.MatchString(p.table.Name):
		return nil, fmt.Errorf("canal: parking.TableOptions.Table %q: an identifier of at most 63 letters, digits and '_', or schema.table", p.table.Name)
	}
	return p, nil
}

// Schema is the statement that makes the table where there is none, for your migrations. The column
// parked holds JSON, in ASCII.
func (t *Table) Schema() string {
	return "CREATE TABLE IF NOT EXISTS " + t.table.Name + " (id BIGINT NOT NULL PRIMARY KEY, parked LONGTEXT NOT NULL)" // SQLite takes every type with TEXT in its name for TEXT: https://www.sqlite.org/datatype3.html, 3.1
}

// CreateTable does what Schema says, for tests and first steps.
func (t *Table) CreateTable(ctx context.Context) error {
	_, err := t.table.DB.ExecContext(ctx, t.Schema())
	return t.failed(err)
}

// Check returns why nothing could be parked: there is no table, or it cannot be written. A Consumer
// calls it when it begins, so that this is known before it is needed.
func (t *Table) Check(ctx context.Context) error {
	_, err := t.table.Exec(ctx, "INSERT INTO TABLE (id, parked) SELECT 0, 'none' FROM (SELECT 1 AS one) AS none WHERE one = 0")
	return t.failed(err)
}

// Park adds a row. Done again with the same q, as after an answer that was lost, it adds no other,
// if q has its Time.
func (t *Table) Park(ctx context.Context, q Parked) error {
	if q.Time.IsZero() {
		q.Time = time.Now()
	}
	b, err := q.MarshalJSON()
	if err != nil {
		return t.failed(err)
	}
	text := plainjson.Escape(b, isASCII) // for which no character set of a table or a connection is too small
	id := q.Time.UnixMicro()
	for range 100 { // as many at one time are not parked
		if _, err = t.table.Exec(ctx, "INSERT INTO TABLE (id, parked) VALUES (?, ?)", id, text); err == nil {
			return nil
		}
		var there string
		if t.table.Tx(ctx, func(tx *sqlx.Tx) error {
			return tx.GetContext(ctx, &there, t.table.Text("SELECT parked FROM TABLE WHERE id = ? LIMIT 1"), id)
		}) != nil {
			break // it was not for the id
		}
		if there == text {
			return nil
		}
		id++
	}
	return t.failed(err)
}

func isASCII(r rune) bool { return r < 0x80 }

// List gives up to limit rows, at most 1000, the oldest first, of those whose ID is greater than
// after; 0 for all. A row that cannot be read has an Err.
func (t *Table) List(ctx context.Context, after int64, limit int) ([]Row, error) {
	if limit < 1 || limit > maxList {
		return nil, t.failed(fmt.Errorf("List: a limit of %d: 1 to %d", limit, maxList))
	}
	var rows []struct {
		ID     int64  `db:"id"`
		Parked string `db:"parked"`
	}
	if err := t.table.Tx(ctx, func(tx *sqlx.Tx) error {
		return tx.SelectContext(ctx, &rows, t.table.Text("SELECT id, parked FROM TABLE WHERE id > ? ORDER BY id LIMIT ?"), after, limit)
	}); err != nil {
		return nil, t.failed(err)
	}
	all := make([]Row, len(rows))
	for i, r := range rows {
		all[i].ID = r.ID
		if err := all[i].Parked.decode([]byte(r.Parked)); err != nil {
			all[i].Err = t.failed(fmt.Errorf("id %d: %w", r.ID, err))
		}
	}
	return all, nil
}

// Count returns the number of rows that are parked.
func (t *Table) Count(ctx context.Context) (n int64, err error) {
	err = t.table.Tx(ctx, func(tx *sqlx.Tx) error {
		return tx.GetContext(ctx, &n, t.table.Text("SELECT COUNT(*) FROM TABLE LIMIT 1"))
	})
	return n, t.failed(err)
}

// Remove removes rows of these IDs, and answers how many of them were there.
func (t *Table) Remove(ctx context.Context, ids ...int64) (removed int64, err error) {
	for some := range slices.Chunk(ids, maxRemove) {
		statement, args, err := sqlx.In("DELETE FROM TABLE WHERE id IN (?)", some)
		if err != nil {
			return removed, t.failed(err)
		}
		n, err := t.table.Exec(ctx, statement, args...)
		removed += n
		if err != nil {
			return removed, t.failed(err)
		}
	}
	return removed, nil
}

func (t *Table) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("canal: parking in %s: %w", t.table.Name, err)
}
