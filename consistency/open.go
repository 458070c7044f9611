package consistency

import (
	"context"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/internal/sqldriver"
)

// The function of an Update may execute COMMIT, ROLLBACK or PREPARE TRANSACTION as a statement. The
// driver does not notice: the following statements are committed one by one, and the COMMIT of the
// Update does nothing and succeeds. So the Update executes a statement before its COMMIT that the
// server refuses outside of a transaction, or inside. In PostgreSQL it is sent with the INSERT into
// the outbox. SQLite refuses a COMMIT outside of a transaction.
const (
	postgresOpen = "SAVEPOINT cacheaside; RELEASE SAVEPOINT cacheaside"
	mysqlOpen    = "SET TRANSACTION READ WRITE" // the default; applies to the next transaction
)

const (
	postgresNoTransaction = "25P01"
	postgresAborted       = "25P02" // COMMIT reports it
	mysqlInTransaction    = 1568
)

// errEnded means that the function of the Update has ended the transaction.
var errEnded = errors.New("the function has ended the transaction: it must not execute COMMIT, ROLLBACK, PREPARE TRANSACTION or, in MySQL, DDL")

// checkOpen returns errEnded if the transaction is no longer open.
func (u *update) checkOpen(ctx context.Context) error {
	switch u.kind {
	case sqldriver.Postgres:
		if u.writesOutbox() {
			return nil // see writeOutbox
		}
		_, err := u.tx.ExecContext(ctx, postgresOpen)
		return ended(err)
	case sqldriver.MySQL:
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
	switch sqlState(err) {
	case postgresNoTransaction:
		return errEnded
	case postgresAborted:
		return nil
	}
	return err
}

// writesOutbox reports whether the Update inserts into an SQLOutbox.
func (u *update) writesOutbox() bool {
	_, ok := u.outbox.(*SQLOutbox)
	return ok && u.level != Inline && len(u.keys) > 0
}
