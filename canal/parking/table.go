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
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// TableOptions are the settings of a Table. A nil pointer and the zero value select the defaults.
type TableOptions struct {
	// Table is the name of the table. For MySQL and PostgreSQL it can be schema.table. In
	// PostgreSQL the case of letters matters, and a name without a schema is in the schema
	// "public", for any search_path. Default: "cacheaside_parked".
	Table string
}

// A Table is a Parking in a table of a database, for programs without their own disk. The table
// contains rows in clear text. A Table is safe for concurrent use by any number of processes.
//
// After the cause of a failure is fixed, use List to get the parked changes, process them, and
// remove them with Remove. For a handler, call it with Parked.Change, or better with the current
// row, because later changes of the row were not held up. For a filter, add the key, or rebuild
// the filter.
type Table struct{ table storage.Table }

// A Row is a row of a Table.
type Row struct {
	ID     int64 // the time in microseconds since 1970; higher if several were parked at the same time
	Parked Parked
	Err    error // the row cannot be read, and Parked is empty
}

const (
	maxList   = 1000
	maxRemove = 500
)

// NewTable returns a Table that stores changes in a table of db. The caller closes db. NewTable
// does no I/O. It is tested with MySQL, MariaDB, PostgreSQL and SQLite. The driver's name
// determines the placeholders (see sqlx.BindType); NewTable returns an error if it contradicts the
// driver.
func NewTable(db *sqlx.DB, options *TableOptions) (*Table, error) {
	var o TableOptions
	if options != nil {
		o = *options
	}
	p := &Table{storage.Table{DB: db, Name: cmp.Or(o.Table, "cacheaside_parked")}}
	switch {
	case db == nil || db.DB == nil:
		return nil, errors.New("canal: parking.NewTable: db is nil")
	case storage.CheckDriver(db) != nil:
		return nil, fmt.Errorf("canal: parking.NewTable: %w", storage.CheckDriver(db))
	case !storage.TableName.MatchString(p.table.Name):
		return nil, fmt.Errorf("canal: parking.TableOptions.Table %q: an identifier of at most 63 letters, digits "+
			"and '_', or schema.table", p.table.Name)
	}
	return p, nil
}

// Schema returns the statement that creates the table if it does not exist, for your migrations.
// The column parked contains JSON in ASCII.
func (t *Table) Schema() string {
	text := "LONGTEXT"
	if sqlx.BindType(t.table.DB.DriverName()) == sqlx.DOLLAR { // see NewTable
		text = "TEXT"
	}
	// SQLite treats every type with TEXT in its name as TEXT:
	// https://www.sqlite.org/datatype3.html, 3.1
	return "CREATE TABLE IF NOT EXISTS " + t.table.SQL() + " (id BIGINT NOT NULL PRIMARY KEY, parked " + text +
		" NOT NULL)"
}

// CreateTable executes Schema. It is meant for tests and first steps.
func (t *Table) CreateTable(ctx context.Context) error {
	return t.wrap(sqldb.CreateTable(ctx, t.table.DB, t.Schema()))
}

// Check returns an error if nothing can be parked, because the table does not exist or cannot be
// written. A Consumer calls it when it becomes active, so that the problem is reported before a
// change has to be parked.
func (t *Table) Check(ctx context.Context) error {
	_, err := t.table.Exec(ctx,
		"INSERT INTO TABLE (id, parked) SELECT 0, 'none' FROM (SELECT 1 AS one) AS none WHERE one = 0")
	return t.wrap(err)
}

// Park inserts a row. If q has a Time, Park can be repeated with the same q, for example after a
// reply was lost, and inserts no second row.
func (t *Table) Park(ctx context.Context, q Parked) error {
	if q.Time.IsZero() {
		q.Time = time.Now()
	}
	b, err := q.MarshalJSON()
	if err != nil {
		return t.wrap(err)
	}
	text := wording.EscapeJSON(b, isASCII) // ASCII fits the character set of any table and connection
	id := q.Time.UnixMicro()
	for range 100 { // more than can be parked in one microsecond
		if _, err = t.table.Exec(ctx, "INSERT INTO TABLE (id, parked) VALUES (?, ?)", id, text); err == nil {
			return nil
		}
		var there string
		if t.table.Tx(ctx, func(tx *sqlx.Tx) error {
			return tx.GetContext(ctx, &there, t.table.Text("SELECT parked FROM TABLE WHERE id = ? LIMIT 1"), id)
		}) != nil {
			break // the insert did not fail because of the id
		}
		if there == text {
			return nil
		}
		id++
	}
	return t.wrap(err)
}

func isASCII(r rune) bool { return r < 0x80 }

// List returns up to limit rows, at most 1000, whose ID is greater than after, oldest first. Use
// 0 to begin with the first row. A row that cannot be read has an Err.
func (t *Table) List(ctx context.Context, after int64, limit int) ([]Row, error) {
	if limit < 1 || limit > maxList {
		return nil, t.wrap(fmt.Errorf("List: a limit of %d: 1 to %d", limit, maxList))
	}
	var rows []struct {
		ID     int64  `db:"id"`
		Parked string `db:"parked"`
	}
	if err := t.table.Tx(ctx, func(tx *sqlx.Tx) error {
		return tx.SelectContext(ctx, &rows,
			t.table.Text("SELECT id, parked FROM TABLE WHERE id > ? ORDER BY id LIMIT ?"), after, limit)
	}); err != nil {
		return nil, t.wrap(err)
	}
	all := make([]Row, len(rows))
	for i, r := range rows {
		all[i].ID = r.ID
		if err := all[i].Parked.decode([]byte(r.Parked)); err != nil {
			all[i].Err = t.wrap(fmt.Errorf("id %d: %w", r.ID, err))
		}
	}
	return all, nil
}

// Count returns the number of parked rows.
func (t *Table) Count(ctx context.Context) (n int64, err error) {
	err = t.table.Tx(ctx, func(tx *sqlx.Tx) error {
		return tx.GetContext(ctx, &n, t.table.Text("SELECT COUNT(*) FROM TABLE LIMIT 1"))
	})
	return n, t.wrap(err)
}

// Remove deletes the rows with these IDs, and returns the number of deleted rows.
func (t *Table) Remove(ctx context.Context, ids ...int64) (removed int64, err error) {
	for some := range slices.Chunk(ids, maxRemove) {
		statement, args, err := sqlx.In("DELETE FROM TABLE WHERE id IN (?)", some)
		if err != nil {
			return removed, t.wrap(err)
		}
		n, err := t.table.Exec(ctx, statement, args...)
		removed += n
		if err != nil {
			return removed, t.wrap(err)
		}
	}
	return removed, nil
}

func (t *Table) wrap(err error) error {
	if err == nil {
		return nil
	}
	return wording.Errorf("canal: parking in %s: %w", t.table.Name, err)
}
