// Package storage contains what the checkpoints and parkings of package canal share: access to
// directories and to tables of a database.
package storage

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// SyncFolder syncs a directory, so that its entries survive a crash of the machine.
func SyncFolder(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // opened for reading
	return d.Sync()
}

// TableName matches the names that a Table may have: an identifier, or schema.table.
var TableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// CheckDriver returns an error if the name of the driver, from which sqlx derives the placeholders
// of statements, contradicts the type of the driver.
func CheckDriver(db *sqlx.DB) error {
	kind, name := sqldb.KindOfDriver(db.Driver()), db.DriverName()
	switch {
	case kind == "", (kind == sqldb.Postgres) == (sqlx.BindType(name) == sqlx.DOLLAR):
		return nil
	case kind == sqldb.Postgres:
		return fmt.Errorf("db is a PostgreSQL database, but the driver name of the sqlx.DB is %q: use "+
			"sqlx.NewDb(db, \"pgx\")", name)
	}
	return fmt.Errorf("db is a %s database, but the driver name of the sqlx.DB is %q, which is one of PostgreSQL",
		kind, name)
}

// Table is a table of a database.
type Table struct {
	DB   *sqlx.DB
	Name string
}

// SQL returns the name of the table in statements. In PostgreSQL it is quoted, and without a schema
// it is in the schema public.
func (t Table) SQL() string {
	if t.postgres() {
		return sqldb.OwnPostgres(t.Name)
	}
	return t.Name
}

// Text returns a statement in which TABLE is replaced by the name of the table, with the
// placeholders of the driver.
func (t Table) Text(statement string) string {
	return t.DB.Rebind(strings.Replace(statement, "TABLE", t.SQL(), 1))
}

// Tx calls f in a transaction, and commits it unless f returns an error. A statement outside of a
// transaction would not be committed in sessions without autocommit, and would read an old snapshot
// there. In PostgreSQL, f fails if row-level security may hide rows of the table. Otherwise a
// position that the role does not see would count as missing.
func (t Table) Tx(ctx context.Context, f func(tx *sqlx.Tx) error) error {
	tx, err := t.DB.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	if t.postgres() {
		_, err = tx.ExecContext(ctx, "SET LOCAL row_security = off")
	}
	if err == nil {
		err = f(tx)
	}
	if err != nil {
		_ = tx.Rollback() // err is the cause
		if sqldb.SQLState(err) == privilege {
			return fmt.Errorf("the role lacks a right on the table, or row-level security hides rows of it (see "+
				"docs/guides/database.md#rights): %w", err)
		}
		return err
	}
	return tx.Commit()
}

// Codes of PostgreSQL's errors (PostgreSQL documentation, "Error Codes").
const (
	privilege = "42501" // also by row-level security
	noTable   = "42P01"
)

// NoTable reports whether err is the error of a statement whose table does not exist.
func NoTable(err error) bool {
	text := err.Error() // of MySQL "Error 1146 (42S02): …", of SQLite "no such table: …"
	return sqldb.SQLState(err) == noTable || strings.Contains(text, "(42S02)") ||
		strings.Contains(text, "no such table")
}

func (t Table) postgres() bool { return sqlx.BindType(t.DB.DriverName()) == sqlx.DOLLAR }

// Exec executes a statement in its own transaction, and returns the number of affected rows. See
// Text for the statement.
func (t Table) Exec(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	err = t.Tx(ctx, func(tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, t.Text(statement), args...)
		if err == nil {
			rows, err = result.RowsAffected()
		}
		return err
	})
	return rows, err
}
