// Package sqltable reads the keys of a table of a SQL database, page by page in the order of the
// database. It returns an error where that order, the type of the column or row-level security
// could hide rows from the reader. bloom.Table returns a Source that reads with a Reader.
// bloom.Redis calls WithReport, to learn from which table the Source reads.
package sqltable

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// PageRows is the number of rows that a Reader reads in one statement. It is so small that a
// statement occupies the database for only about a millisecond.
const PageRows = 1000

// Queryer is bloom.Queryer.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// reportKey is the context key of the function of WithReport.
type reportKey struct{}

// WithReport returns a context in which Read calls report with the name of the table that it reads,
// before its first key. Read returns the error of report.
func WithReport(ctx context.Context, report func(ctx context.Context, table string) error) context.Context {
	return context.WithValue(ctx, reportKey{}, report)
}

// New returns a Reader of a column whose keys are of this kind: an integer or a string. If an
// argument is wrong, Read returns the error.
func New(db Queryer, kind reflect.Kind, table, column string) *Reader {
	r := &Reader{db: db, kind: kind}
	r.err = r.prepare(table, column)
	return r
}

// A Reader reads the keys of one table. It may be used by several goroutines.
type Reader struct {
	db   Queryer
	kind reflect.Kind // of the keys
	err  error        // error of prepare

	table               string // and its column, with a dot
	firstPage, nextPage string // statements for the first page, and for the page after a key
	firstRow, findKey   string // statements for the first row, and for one key

	hidesRows string      // in PostgreSQL: asks whether row-level security applies
	bytea     atomic.Bool // the column was found to be a bytea: a parameter must not be text
}

func (r *Reader) prepare(table, column string) error {
	switch {
	case r.db == nil, reflect.ValueOf(r.db).Kind() == reflect.Pointer && reflect.ValueOf(r.db).IsNil():
		return errors.New("the database is nil")
	case !sqldb.IsTable(table):
		return fmt.Errorf("table %q: an identifier of 1 to 64 letters, digits and '_', or two with a '.' between "+
			"them", table)
	case !sqldb.IsIdentifier(column):
		return fmt.Errorf("column %q: an identifier of 1 to 64 letters, digits and '_'", column)
	}
	r.table = table + "." + column
	quote, parameter := sqldb.Quote, "?"
	if kindOf(r.db) == sqldb.Postgres {
		quote, parameter = sqldb.QuoteStandard, "$1"
		r.hidesRows = "SELECT row_security_active('" + quote(table) + "')"
	}
	column, table = quote(column), quote(table)
	end := " ORDER BY " + column + " LIMIT " + strconv.Itoa(PageRows)
	r.firstPage = "SELECT " + column + " FROM " + table + end
	r.nextPage = "SELECT " + column + " FROM " + table + " WHERE " + column + " > " + parameter + end
	r.firstRow = "SELECT " + column + " FROM " + table + " ORDER BY " + column + " LIMIT 1"
	r.findKey = "SELECT " + column + " FROM " + table + " WHERE " + column + " = " + parameter + " LIMIT 1"
	return nil
}

// kindOf returns the kind of a database, if its type shows it.
func kindOf(db Queryer) sqldb.Kind {
	switch db := db.(type) {
	case interface {
		Driver() driver.Driver
		DriverName() string
	}:
		return sqldb.KindOf(db)
	case interface{ Driver() driver.Driver }:
		return sqldb.KindOfDriver(db.Driver())
	case interface{ DriverName() string }: // an *sqlx.Tx
		return sqldb.KindOfName(db.DriverName())
	}
	return ""
}

// Read yields the keys of all pages after the key after.
func (r *Reader) Read(ctx context.Context, after string, yield func(string, error) bool) error {
	if r.err != nil {
		return r.err
	}
	if err := r.report(ctx); err != nil {
		return err
	}
	if err := r.checkAllRows(ctx); err != nil {
		return err
	}
	if after != "" {
		if err := r.checkResumable(ctx); err != nil {
			return err
		}
	}
	for {
		page, text, err := r.page(ctx, after)
		if err != nil {
			return err
		}
		if len(page) == PageRows && !text { // the next page begins after its last row
			if err := r.checkFinds(ctx, page[len(page)-1], page[0], page[len(page)/2]); err != nil {
				return err
			}
		}
		for _, key := range page {
			if !yield(key, nil) {
				return nil
			}
		}
		if len(page) < PageRows {
			return nil
		}
		last := page[len(page)-1]
		if last == after { // in SQLite a BLOB sorts after any text
			return ErrOrder
		}
		after = last
	}
}

// report reports the table to the filter that is rebuilt, with the name of its database. It
// contains neither the address nor an ID of the server, which change with a failover.
func (r *Reader) report(ctx context.Context) error {
	report, ok := ctx.Value(reportKey{}).(func(context.Context, string) error)
	if !ok {
		return nil
	}
	database, err := r.database(ctx)
	if err != nil {
		return err
	}
	return report(ctx, database+r.table)
}

// database returns the name of the database that statements use, and a dot. It returns "" if the
// database has no name, such as SQLite.
func (r *Reader) database(ctx context.Context) (name string, err error) {
	statement := "SELECT DATABASE()"
	switch kindOf(r.db) {
	case sqldb.Postgres:
		statement = "SELECT current_database()"
	case sqldb.MySQL:
	default:
		return "", nil
	}
	rows, err := r.db.QueryContext(ctx, statement)
	if err != nil {
		return "", err
	}
	defer rows.Close() //nolint:errcheck // rows.Err returns the error
	var found sql.NullString
	for rows.Next() {
		if err := rows.Scan(&found); err != nil {
			return "", err
		}
	}
	if found.String == "" { // no database is selected: the table has a schema
		return "", rows.Err()
	}
	return found.String + ".", rows.Err()
}

// checkAllRows returns an error if row-level security of PostgreSQL may hide rows from the role of
// the database. A filter without their keys would hide these rows from all users.
func (r *Reader) checkAllRows(ctx context.Context) error {
	if r.hidesRows == "" {
		return nil
	}
	rows, err := r.db.QueryContext(ctx, r.hidesRows)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err returns the error
	var hides bool
	for rows.Next() {
		if err := rows.Scan(&hides); err != nil {
			return err
		}
	}
	if hides {
		return ErrHidden
	}
	return rows.Err()
}

// checkResumable checks that the database compares the values of the column in the order that
// it sorts them in. It is called before the first page that begins after a key. It checks the first
// row, because integers sort first if the column holds both integers and text.
func (r *Reader) checkResumable(ctx context.Context) error {
	page, text, err := r.query(ctx, nil, r.firstRow)
	if err != nil || text || len(page) == 0 {
		return err
	}
	return r.checkFinds(ctx, page[0])
}

// checkFinds returns an error if the database finds none of these keys. If it finds one, it
// compares keys in the order that it sorts them in. The caller passes several keys, because a row
// may have been deleted.
func (r *Reader) checkFinds(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if found, _, err := r.query(ctx, nil, r.findKey, key); err != nil || len(found) > 0 {
			return err
		}
	}
	return ErrOrder
}

// page reads a page as a whole, so that no statement is open while keys are added. text is true
// if the last value of the page is text in the database, or if keys are not strings.
func (r *Reader) page(ctx context.Context, after string) (page []string, text bool, err error) {
	if after == "" {
		return r.query(ctx, nil, r.firstPage)
	}
	last, err := r.value(after)
	if err != nil {
		return nil, false, err
	}
	return r.query(ctx, last, r.nextPage, last)
}

// query reads keys, all of which must follow last unless it is nil. text is as for page.
func (r *Reader) query(
	ctx context.Context, last any, statement string, args ...any,
) (page []string, text bool, err error) {
	rows, err := r.db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err returns the error
	if err := r.ordered(rows); err != nil {
		return nil, false, err
	}
	page, text = make([]string, 0, PageRows), true
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, false, err
		}
		if r.kind == reflect.String {
			if text, err = isText(rows); err != nil {
				return nil, false, err
			}
		}
		value, err := r.value(key)
		if err != nil {
			return nil, false, err
		}
		if r.kind != reflect.String {
			key = fmt.Sprint(value) // some have leading zeros
		}
		if last != nil && !r.mayFollow(value, last) {
			return nil, false, ErrOrder
		}
		page, last = append(page, key), value
	}
	return page, text, rows.Err()
}

// isText reports whether the database returned text for the row that was scanned.
func isText(rows *sql.Rows) (bool, error) {
	var value any
	err := rows.Scan(&value)
	switch value.(type) {
	case string, []byte:
		return true, err
	}
	return false, err
}

// The errors of a table whose keys cannot be read, or not all of them.
var (
	ErrOrder = errors.New("the database does not compare the values of the column as it sorts them: the column is " +
		"an ENUM or SET, or its type is not that of Table (Table[int64], Table[string])")
	ErrHidden = errors.New("row-level security may hide rows of the table from this role: use its owner, or a role " +
		"with BYPASSRLS")
	ErrValue = errors.New("the column holds a value that is not an integer, or is too large for the type of Table")
)

// ordered returns ErrOrder for columns that MySQL sorts by number and compares by text. It also
// notes whether the column is a bytea.
func (r *Reader) ordered(rows *sql.Rows) error {
	types, err := rows.ColumnTypes()
	if err != nil || r.kind != reflect.String {
		return err
	}
	switch types[0].DatabaseTypeName() {
	case "ENUM", "SET":
		return ErrOrder
	case "BYTEA":
		r.bytea.Store(true)
	}
	return nil
}

// value returns the argument of a statement for a key. For an integer it must be an integer.
// Otherwise the database would compare both sides as floating-point numbers, or as text.
func (r *Reader) value(key string) (any, error) {
	switch r.kind {
	case reflect.String:
		if r.bytea.Load() {
			return []byte(key), nil
		}
		return key, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(key, 10, 64)
		if err != nil {
			return nil, ErrValue // without the key
		}
		return n, nil
	default:
		n, err := strconv.ParseInt(key, 10, 64)
		if err != nil {
			return nil, ErrValue
		}
		return n, nil
	}
}

// mayFollow reports whether value may follow last. For strings only the database knows the order.
func (r *Reader) mayFollow(value, last any) bool {
	switch v := value.(type) {
	case int64:
		return v >= last.(int64)
	case uint64:
		return v >= last.(uint64)
	default:
		return true
	}
}
