package bloom

import (
	"context"
	"database/sql"
	"iter"
	"reflect"
	"slices"

	"github.com/cacheaside/cacheaside/bloom/internal/sqltable"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Keys returns a Source of these keys, for a set that does not change.
func Keys(keys ...string) Source {
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			next, found := slices.BinarySearch(sorted, after)
			if found && after != "" { // an empty key does not follow any other
				next++
			}
			for _, key := range sorted[next:] {
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
	reader := sqltable.New(db, reflect.TypeFor[K]().Kind(), table, column)
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if err := reader.Read(ctx, after, yield); err != nil {
				yield("", wording.Errorf("bloom: Table: %w", err))
			}
		}
	}
}
