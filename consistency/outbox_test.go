package consistency

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A TestOutbox is an sqloutbox.Outbox. Package sqloutbox imports this one, so only the external
// test package can import it: sqloutbox_test.go sets NewTestOutbox.
type TestOutbox interface {
	TxQueue
	QueueHooks
	CreateTable(ctx context.Context) error
}

// NewTestOutbox returns an sqloutbox.Outbox for the driver of db. "" is the default of table and
// namespace.
var NewTestOutbox func(db *sqlx.DB, table, namespace string) (TestOutbox, error)

const testSpace = "cacheaside" // the default Prefix

// eachDatabase runs a test on SQLite and MariaDB, and on each server if CACHEASIDE_ACCEPT is set.
func eachDatabase(t *testing.T, f func(t *testing.T, db *sqlx.DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { f(t, sqlx.NewDb(sqlite.Open(t), "sqlite")) })
	testenv.OneServerUnlessAccepting(t, func(t *testing.T, e testenv.Engine) { f(t, testenv.DatabaseOf(t, e).Open(t)) })
}

// execOn executes a statement whose placeholders are question marks.
func execOn(ctx context.Context, tx *sqlx.Tx, statement string, args ...any) error {
	_, err := tx.ExecContext(ctx, tx.Rebind(statement), args...)
	return err
}
