package bloom

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"

	"github.com/cacheaside/cacheaside/internal/sqlname"
)

// Keys is a Source of these keys, for a set that does not change.
func Keys(keys ...string) Source {
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			at, found := slices.BinarySearch(sorted, after)
			if found && after != "" { // an empty key is behind no other
				at++
			}
			for _, key := range sorted[at:] {
				if !yield(key, nil) {
					return
				}
			}
		}
	}
}

// Column is what the column of a Table holds.
type Column interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~string
}

// pageRows is how many rows a Table reads at once: few enough not to keep a database from its other
// work for longer than a millisecond or so.
const pageRows = 1000

// Queryer is what *sql.DB and *sqlx.DB have.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Table is a Source of all values of a column, in the database's order, for MySQL and SQLite. The
// column is the primary key, or another that is unique and not NULL, and holds K: integers, whose
// text is decimal, or strings, which are taken as they are. table may be given as schema.table;
// names are letters, digits and "_".
//
//	bloom.Table[int64](db, "users", "id")
//
// Each page of 1000 rows is a statement of its own (WHERE column > ? ORDER BY column LIMIT 1000),
// on no transaction, so that the database keeps no snapshot for it. Do not use a db that reads from
// a replica: the rows that the replica lags behind would be hidden.
//
// Each page begins behind the last key of the one before. Where the database does not compare what
// the column holds as it sorts it (SQLite, a column without a type) that would leave out rows: it
// is an error.
//
// Strings may be of any collation, since the one that sorts them also compares them. But a filter
// compares byte for byte: where the collation finds the row "foo" for "Foo", or for "foo " with a
// space, ask the filter for "foo", as the table has it.
//
// For PostgreSQL, which has other quotes and parameters, and for keys of several columns write a
// Source in the same way.
func Table[K Column](db Queryer, table, column string) Source {
	t := &tableSource{db: db, kind: reflect.TypeFor[K]().Kind()}
	t.err = t.prepare(table, column)
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if err := t.read(ctx, after, yield); err != nil {
				yield("", fmt.Errorf("bloom: Table: %w", err))
			}
		}
	}
}

type tableSource struct {
	db   Queryer
	kind reflect.Kind // of the keys
	err  error        // of its constructor

	firstPage, nextPage string // statements: of the first page, and of those behind a key
	firstRow, findKey   string // of the first row, and of a key
}

func (t *tableSource) prepare(table, column string) error {
	switch {
	case t.db == nil, reflect.ValueOf(t.db).Kind() == reflect.Pointer && reflect.ValueOf(t.db).IsNil():
		return errors.New("the database is nil")
	case !sqlname.IsTable(table):
		return fmt.Errorf("table %q: an identifier of 1 to 64 letters, digits and '_', or two with a '.' between them", table)
	case !sqlname.IsIdentifier(column):
		return fmt.Errorf("column %q: an identifier of 1 to 64 letters, digits and '_'", column)
	}
	column, table = sqlname.Quote(column), sqlname.Quote(table)
	end := " ORDER BY " + column + " LIMIT " + strconv.Itoa(pageRows)
	t.firstPage = "SELECT " + column + " FROM " + table + end
	t.nextPage = "SELECT " + column + " FROM " + table + " WHERE " + column + " > ?" + end
	t.firstRow = "SELECT " + column + " FROM " + table + " ORDER BY " + column + " LIMIT 1"
	t.findKey = "SELECT " + column + " FROM " + table + " WHERE " + column + " = ? LIMIT 1"
	return nil
}

// read yields page after page. An error is the last.
func (t *tableSource) read(ctx context.Context, after string, yield func(string, error) bool) error {
	if t.err != nil {
		return t.err
	}
	if after != "" {
		if err := t.checkResumable(ctx); err != nil {
			return err
		}
	}
	for {
		page, text, err := t.page(ctx, after)
		if err != nil {
			return err
		}
		if len(page) == pageRows && !text { // the next is behind its last
			if err := t.checkFinds(ctx, page[len(page)-1], page[0], page[len(page)/2]); err != nil {
				return err
			}
		}
		for _, key := range page {
			if !yield(key, nil) {
				return nil
			}
		}
		if len(page) < pageRows {
			return nil
		}
		last := page[len(page)-1]
		if last == after { // in SQLite a BLOB is behind any text
			return errOrder
		}
		after = last
	}
}

// resumable makes sure that what the column holds is found behind a key. Where it holds integers
// and text, integers come first.
func (t *tableSource) checkResumable(ctx context.Context) error {
	page, text, err := t.query(ctx, nil, t.firstRow)
	if err != nil || text || len(page) == 0 {
		return err
	}
	return t.checkFinds(ctx, page[0])
}

// finds makes sure that the database takes one of these keys for what the column holds: then it
// compares them as it sorts them. There are several since one may have been deleted.
func (t *tableSource) checkFinds(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if found, _, err := t.query(ctx, nil, t.findKey, key); err != nil || len(found) > 0 {
			return err
		}
	}
	return errOrder
}

// page is read as a whole before it is yielded, so that no statement is open while keys are added.
// text is false where strings are read, and the last of them is something else to the database.
func (t *tableSource) page(ctx context.Context, after string) (page []string, text bool, err error) {
	if after == "" {
		return t.query(ctx, nil, t.firstPage)
	}
	last, err := t.value(after)
	if err != nil {
		return nil, false, err
	}
	return t.query(ctx, last, t.nextPage, last)
}

// query reads keys, all of them behind last, if there is one. For text see page.
func (t *tableSource) query(ctx context.Context, last any, statement string, args ...any) (page []string, text bool, err error) {
	rows, err := t.db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	if err := t.ordered(rows); err != nil {
		return nil, false, err
	}
	page, text = make([]string, 0, pageRows), true
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, false, err
		}
		if t.kind == reflect.String {
			if text, err = isText(rows); err != nil {
				return nil, false, err
			}
		}
		value, err := t.value(key)
		if err != nil {
			return nil, false, err
		}
		if t.kind != reflect.String {
			key = fmt.Sprint(value) // some have zeros in front
		}
		if last != nil && !t.mayFollow(value, last) {
			return nil, false, errOrder
		}
		page, last = append(page, key), value
	}
	return page, text, rows.Err()
}

// isText tells whether the database has given text, of a row that was scanned.
func isText(rows *sql.Rows) (bool, error) {
	var value any
	err := rows.Scan(&value)
	switch value.(type) {
	case string, []byte:
		return true, err
	}
	return false, err
}

var (
	errOrder = errors.New("the column is not in the order of its values: its type is not Table's (Table[int64], Table[string]), or it is an ENUM or SET")
	errValue = errors.New("the column holds a value that is not an integer, or too large for Table's type")
)

// ordered refuses columns that MySQL sorts by their number, and compares by their text.
func (t *tableSource) ordered(rows *sql.Rows) error {
	types, err := rows.ColumnTypes()
	if err == nil && t.kind == reflect.String && slices.Contains([]string{"ENUM", "SET"}, types[0].DatabaseTypeName()) {
		return errOrder
	}
	return err
}

// value is what a key is in a statement: an integer must be one there, or both sides would be
// compared as floating point numbers, or as text.
func (t *tableSource) value(key string) (any, error) {
	switch t.kind {
	case reflect.String:
		return key, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(key, 10, 64)
		if err != nil {
			return nil, errValue // without the key
		}
		return n, nil
	default:
		n, err := strconv.ParseInt(key, 10, 64)
		if err != nil {
			return nil, errValue
		}
		return n, nil
	}
}

// behind tells whether value may come behind last: of strings only the database knows, but the same
// is none.
func (t *tableSource) mayFollow(value, last any) bool {
	switch v := value.(type) {
	case int64:
		return v >= last.(int64)
	case uint64:
		return v >= last.(uint64)
	default:
		return true
	}
}
