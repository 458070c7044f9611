package consistency

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// The function of an Update may execute COMMIT, ROLLBACK or PREPARE TRANSACTION as a statement. The
// driver does not notice: the following statements are committed one by one, and the COMMIT of the
// Update does nothing and succeeds. So the Update executes a statement before its COMMIT that the
// server refuses outside of a transaction, or inside. In PostgreSQL it is sent with the statement
// of the outbox (see openTx). SQLite refuses a COMMIT outside of a transaction.
const (
	postgresOpen = "SAVEPOINT cacheaside; RELEASE SAVEPOINT cacheaside"
	mysqlOpen    = "SET TRANSACTION READ WRITE" // the default; applies to the next transaction
)

// The errors of PostgreSQL that are handled (PostgreSQL documentation, "Error Codes").
const (
	postgresSerialization = "40001"
	postgresDeadlock      = "40P01"
	postgresIntegrity     = "23" // the beginning of the codes of violated constraints
	postgresNoTransaction = "25P01"
	postgresAborted       = "25P02" // COMMIT reports it
)

const mysqlInTransaction = 1568 // an error of MySQL

// errEnded means that the function of the Update has ended the transaction.
var errEnded = errors.New("the function has ended the transaction: it must not execute COMMIT, ROLLBACK, " +
	"PREPARE TRANSACTION or, in MySQL, DDL")

// checkOpen returns errEnded if the transaction is no longer open.
func (u *update) checkOpen(ctx context.Context) error {
	switch u.kind {
	case sqldb.Postgres:
		if u.writesOutbox() {
			return nil // see openTx
		}
		_, err := u.tx.ExecContext(ctx, postgresOpen)
		return ended(err)
	case sqldb.MySQL:
		_, err := u.tx.ExecContext(ctx, mysqlOpen)
		if refused, ok := errors.AsType[*mysql.MySQLError](err); ok && refused.Number == mysqlInTransaction {
			return nil
		}
		if err == nil {
			return errEnded
		}
		return err
	}
	return nil
}

// ended returns errEnded if err says that there is no transaction in PostgreSQL, and nil if the
// transaction has failed, which COMMIT reports.
func ended(err error) error {
	switch sqldb.SQLState(err) {
	case postgresNoTransaction:
		return errEnded
	case postgresAborted:
		return nil
	}
	return err
}

// writesOutbox reports whether the Update puts its keys into an outbox.
func (u *update) writesOutbox() bool {
	return u.outbox != nil && u.level != Inline && len(u.keys) > 0
}

// An openTx is a transaction in PostgreSQL that the outbox puts items into. With the first
// statement of the outbox it checks that the transaction is open. If that statement has no
// arguments, both are one trip to the server: the driver sends it as text, which may contain
// several statements.
type openTx struct {
	*sqlx.Tx
	checked bool
}

// ExecContext implements sqlx.ExecerContext.
func (o *openTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	switch {
	case o.checked:
	case len(args) == 0:
		query = postgresOpen + "; " + query
	default:
		if err := o.check(ctx); err != nil {
			return nil, err
		}
	}
	o.checked = true
	return o.Tx.ExecContext(ctx, query, args...)
}

// check returns an error if the transaction is not open.
func (o *openTx) check(ctx context.Context) error {
	_, err := o.Tx.ExecContext(ctx, postgresOpen)
	return err
}
