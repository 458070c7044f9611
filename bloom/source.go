package bloom

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Keys returns a Source of these keys, for a set that does not change.
func Keys(keys ...string) Source {
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			at, found := slices.BinarySearch(sorted, after)
			if found && after != "" { // an empty key does not follow any other
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

// Column is the type of the column of a Table.
type Column interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~string
}

// pageRows is the number of rows that a Table reads in one statement. It is so small that a
// statement occupies the database for only about a millisecond.
const pageRows = 1000

// Queryer is the interface of the database that a Table reads. *sql.DB and *sqlx.DB implement it.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Table returns a Source of all values of a column, in the database's order, for MySQL, SQLite and
// PostgreSQL. The column is the primary key, or another column that is unique and not NULL. K is
// its type: an integer, whose key is its decimal text, or a string, which is the key itself. table
// may have the form schema.table. Names consist of letters, digits and "_". In PostgreSQL a table
// without a schema is the one that your own statements find by the search_path of db. It must be
// the same for all connections of db: give the schema if it is not.
//
//	bloom.Table[int64](db, "users", "id")
//
// Table reads pages of 1000 rows. Each page is a separate statement (WHERE column > ? ORDER BY
// column LIMIT 1000) outside a transaction, so the database keeps no snapshot for it. Do not use
// a db that reads from a replica: the filter would refuse the keys of rows that the replica does
// not have.
//
// Each page begins after the last key of the previous one. That would omit rows if the database
// compares the values of the column in another order than it sorts them (SQLite, a column without
// a type). Table returns an error in that case.
//
// Strings may have any collation, because the database sorts and compares them with the same one.
// But a filter compares byte for byte. If the collation finds the row "foo" for "Foo", or for
// "foo " with a space, look up "foo" in the filter, the value in the table.
//
// In PostgreSQL, Table returns an error if row-level security applies to the role of db, because a
// filter without the keys of hidden rows would hide them from all users: use the owner of the
// table, or a role with BYPASSRLS.
//
// PostgreSQL uses other quotes and parameters. Table recognises it by the driver of an *sql.DB, or
// by the driver's name of an *sqlx.DB or *sqlx.Tx (one that sqlx knows, such as "pgx"): give Table
// one of these if the driver is wrapped. For keys of several columns, write a similar Source.
func Table[K Column](db Queryer, table, column string) Source {
	t := &tableSource{db: db, kind: reflect.TypeFor[K]().Kind()}
	t.err = t.prepare(table, column)
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if err := t.read(ctx, after, yield); err != nil {
				yield("", wording.Errorf("bloom: Table: %w", err))
			}
		}
	}
}

type tableSource struct {
	db   Queryer
	kind reflect.Kind // of the keys
	err  error        // error of prepare

	table               string // and its column, with a dot
	firstPage, nextPage string // statements for the first page, and for the page after a key
	firstRow, findKey   string // statements for the first row, and for one key

	hidesRows string      // in PostgreSQL: asks whether row-level security applies
	bytea     atomic.Bool // the column was found to be a bytea: a parameter must not be text
}

func (t *tableSource) prepare(table, column string) error {
	switch {
	case t.db == nil, reflect.ValueOf(t.db).Kind() == reflect.Pointer && reflect.ValueOf(t.db).IsNil():
		return errors.New("the database is nil")
	case !sqldb.IsTable(table):
		return fmt.Errorf("table %q: an identifier of 1 to 64 letters, digits and '_', or two with a '.' between "+
			"them", table)
	case !sqldb.IsIdentifier(column):
		return fmt.Errorf("column %q: an identifier of 1 to 64 letters, digits and '_'", column)
	}
	t.table = table + "." + column
	quote, parameter := sqldb.Quote, "?"
	if kindOf(t.db) == sqldb.Postgres {
		quote, parameter = sqldb.QuoteStandard, "$1"
		t.hidesRows = "SELECT row_security_active('" + quote(table) + "')"
	}
	column, table = quote(column), quote(table)
	end := " ORDER BY " + column + " LIMIT " + strconv.Itoa(pageRows)
	t.firstPage = "SELECT " + column + " FROM " + table + end
	t.nextPage = "SELECT " + column + " FROM " + table + " WHERE " + column + " > " + parameter + end
	t.firstRow = "SELECT " + column + " FROM " + table + " ORDER BY " + column + " LIMIT 1"
	t.findKey = "SELECT " + column + " FROM " + table + " WHERE " + column + " = " + parameter + " LIMIT 1"
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

// read yields the keys of all pages after the key after.
func (t *tableSource) read(ctx context.Context, after string, yield func(string, error) bool) error {
	if t.err != nil {
		return t.err
	}
	if err := t.report(ctx); err != nil {
		return err
	}
	if err := t.checkAllRows(ctx); err != nil {
		return err
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
		if len(page) == pageRows && !text { // the next page begins after its last row
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
		if last == after { // in SQLite a BLOB sorts after any text
			return errOrder
		}
		after = last
	}
}

// report reports the table to the filter that is rebuilt, with the name of its database. It
// contains neither the address nor an ID of the server, which change with a failover.
func (t *tableSource) report(ctx context.Context) error {
	report, ok := ctx.Value(tableKey{}).(func(context.Context, string) error)
	if !ok {
		return nil
	}
	database, err := t.database(ctx)
	if err != nil {
		return err
	}
	return report(ctx, database+t.table)
}

// database returns the name of the database that statements use, and a dot. It returns "" if the
// database has no name, such as SQLite.
func (t *tableSource) database(ctx context.Context) (name string, err error) {
	statement := "SELECT DATABASE()"
	switch kindOf(t.db) {
	case sqldb.Postgres:
		statement = "SELECT current_database()"
	case sqldb.MySQL:
	default:
		return "", nil
	}
	rows, err := t.db.QueryContext(ctx, statement)
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
func (t *tableSource) checkAllRows(ctx context.Context) error {
	if t.hidesRows == "" {
		return nil
	}
	rows, err := t.db.QueryContext(ctx, t.hidesRows)
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
		return errHidden
	}
	return rows.Err()
}

// checkResumable checks that the database compares the values of the column in the order that
// it sorts them in. It is called before the first page that begins after a key. It checks the first
// row, because integers sort first if the column holds both integers and text.
func (t *tableSource) checkResumable(ctx context.Context) error {
	page, text, err := t.query(ctx, nil, t.firstRow)
	if err != nil || text || len(page) == 0 {
		return err
	}
	return t.checkFinds(ctx, page[0])
}

// checkFinds returns an error if the database finds none of these keys. If it finds one, it
// compares keys in the order that it sorts them in. The caller passes several keys, because a row
// may have been deleted.
func (t *tableSource) checkFinds(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if found, _, err := t.query(ctx, nil, t.findKey, key); err != nil || len(found) > 0 {
			return err
		}
	}
	return errOrder
}

// page reads a page as a whole, so that no statement is open while keys are added. text is true
// if the last value of the page is text in the database, or if keys are not strings.
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

// query reads keys, all of which must follow last unless it is nil. text is as for page.
func (t *tableSource) query(
	ctx context.Context, last any, statement string, args ...any,
) (page []string, text bool, err error) {
	rows, err := t.db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err returns the error
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
			key = fmt.Sprint(value) // some have leading zeros
		}
		if last != nil && !t.mayFollow(value, last) {
			return nil, false, errOrder
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

var (
	errOrder = errors.New("the database does not compare the values of the column as it sorts them: the column is " +
		"an ENUM or SET, or its type is not that of Table (Table[int64], Table[string])")
	errHidden = errors.New("row-level security may hide rows of the table from this role: use its owner, or a role " +
		"with BYPASSRLS")
	errValue = errors.New("the column holds a value that is not an integer, or is too large for the type of Table")
)

// ordered returns errOrder for columns that MySQL sorts by number and compares by text. It also
// notes whether the column is a bytea.
func (t *tableSource) ordered(rows *sql.Rows) error {
	types, err := rows.ColumnTypes()
	if err != nil || t.kind != reflect.String {
		return err
	}
	switch types[0].DatabaseTypeName() {
	case "ENUM", "SET":
		return errOrder
	case "BYTEA":
		t.bytea.Store(true)
	}
	return nil
}

// value returns the argument of a statement for a key. For an integer it must be an integer.
// Otherwise the database would compare both sides as floating-point numbers, or as text.
func (t *tableSource) value(key string) (any, error) {
	switch t.kind {
	case reflect.String:
		if t.bytea.Load() {
			return []byte(key), nil
		}
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

// mayFollow reports whether value may follow last. For strings only the database knows the order.
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
