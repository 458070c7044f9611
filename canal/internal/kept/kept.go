// Package kept has what the checkpoints and the parkings of package canal share: folders, and
// tables of a database.
package kept

import (
	"context"
	"os"
	"regexp"
	"strings"

	"github.com/jmoiron/sqlx"
)

// SyncFolder writes the names in a folder to the disk.
func SyncFolder(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // it was read only
	return d.Sync()
}

// TableName matches the names that a Table may have.
var TableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Table is a table of a database.
type Table struct {
	DB   *sqlx.DB
	Name string
}

// Text returns a statement with the table in the place of TABLE, and the placeholders of the
// driver.
func (t Table) Text(statement string) string {
	return t.DB.Rebind(strings.Replace(statement, "TABLE", t.Name, 1))
}

// Tx calls f in a transaction, and commits it unless f fails. A statement by itself would not be
// committed where sessions are without autocommit, and would read what an older one saw.
func (t Table) Tx(ctx context.Context, f func(tx *sqlx.Tx) error) error {
	tx, err := t.DB.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // f's error says more
		return err
	}
	return tx.Commit()
}

// Exec executes a statement in a transaction of its own, and returns the number of rows that it has
// changed. See Text for the statement.
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
