package consistency

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/sqlclock"
)

// How often something is tried that others were in the way of.
const (
	outboxTries = 5
	outboxPause = 10 * time.Millisecond // before the second try; then twice as long
)

// session does work on a connection. Each statement of it is a transaction of its own, so that a
// caller that is cut off, or stopped, between two of them leaves nothing locked behind; the COMMIT
// is for sessions that are without autocommit. In MySQL they are READ COMMITTED, or the first is:
// there what is locked are rows, and not the gaps beside them, into which others insert. work is
// done again from its beginning after a deadlock, and when it has waited for a lock in vain.
func (s *SQLOutbox) session(ctx context.Context, work func(*sql.Conn) error) error {
	return again(ctx, func() error { return s.try(ctx, work) })
}

// asker is what *sql.DB and *sql.Tx have.
type asker interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// reading does work that only reads, as session does. In MySQL that is a transaction: a proxy that
// sends reads to a replica, which may not have yet what was written a moment ago, sends those of
// transactions to the server that is written to. It is READ COMMITTED, and so locks nothing,
// whatever the isolation of sessions, and no matter which caller is stopped in it.
func (s *SQLOutbox) reading(ctx context.Context, work func(asker) error) error {
	if s.text.dialect == SQLite {
		return again(ctx, func() error { return work(s.db) })
	}
	return again(ctx, func() error {
		tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		if err := work(tx); err != nil {
			_ = tx.Rollback() // it has changed nothing
			return err
		}
		return tx.Commit()
	})
}

// again tries until nobody is in the way.
func again(ctx context.Context, try func() error) (err error) {
	for i := range outboxTries {
		if i > 0 && retry.Sleep(ctx, retry.Delay(i, outboxPause, time.Second)) != nil {
			break
		}
		if err = try(); err == nil || ctx.Err() != nil || !inTheWay(err) {
			break
		}
	}
	return err
}

func (s *SQLOutbox) try(ctx context.Context, work func(*sql.Conn) error) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && s.text.dialect == MySQL { // a transaction that may have been left open, without autocommit, ends with the connection
			conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // that is how database/sql is told
		}
		conn.Close() //nolint:errcheck // nothing is to be done about it
	}()
	begin, end := s.text.around()
	if err := execute(ctx, conn, begin); err != nil {
		return err
	}
	if err := work(conn); err != nil {
		return err
	}
	return execute(ctx, conn, end)
}

// The errors of MySQL that mean something here.
const (
	mysqlCheckRead = 1020 // a row has changed since it was read, where innodb_snapshot_isolation is set
	mysqlNull      = 1048
	mysqlSyntax    = 1064
	mysqlNoTable   = 1146
	mysqlNoColumn  = 1054
	mysqlNoIndex   = 1176
	mysqlLockWait  = 1205
	mysqlDeadlock  = 1213
	mysqlBadText   = 1366
	mysqlRange     = 1690
)

// inTheWay tells whether another transaction was, so that it is to be done again. SQLite's drivers
// have no common type of error, but the message is SQLite's.
func inTheWay(err error) bool {
	if answer, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return answer.Number == mysqlLockWait || answer.Number == mysqlDeadlock || answer.Number == mysqlCheckRead
	}
	return strings.Contains(err.Error(), "database is locked") || strings.Contains(err.Error(), "database table is locked")
}

// explain adds to an error what to do about it, and removes what the server quotes of the
// statement, which may be keys.
func (s *SQLOutbox) explain(err error) error {
	answer, ok := errors.AsType[*mysql.MySQLError](err)
	switch {
	case !ok && strings.Contains(err.Error(), "no such table"), ok && answer.Number == mysqlNoTable:
		return fmt.Errorf("the table %s is missing (see Dialect.Schema): %w", s.text.name, err)
	case !ok && (strings.Contains(err.Error(), "no such column") || strings.Contains(err.Error(), "has no column")), ok && (answer.Number == mysqlNoColumn || answer.Number == mysqlNoIndex):
		return fmt.Errorf("the table %s has the wrong columns (see Dialect.Schema): %w", s.text.name, err)
	case ok && answer.Number == mysqlRange, !ok && strings.Contains(err.Error(), "ON CONFLICT clause does not match"):
		return fmt.Errorf("the table %s is of an older release, and its primary key lacks the namespace: %s (see docs/migration.md): %w", s.text.name, s.text.newKey(), err)
	case ok && answer.Number == mysqlNull:
		return quiet(answer, sqlclock.Hint)
	case ok && answer.Number == mysqlSyntax:
		return quiet(answer, "the server does not know this SQL (MariaDB needs 10.6, MySQL 8.0.17)")
	case ok && answer.Number == mysqlBadText:
		return quiet(answer, "a column is not binary (see Dialect.Schema)")
	}
	return err
}

func quiet(answer *mysql.MySQLError, message string) error {
	return &mysql.MySQLError{Number: answer.Number, SQLState: answer.SQLState, Message: message}
}

// changed executes a statement in a session, and returns the number of rows that it has changed.
func (s *SQLOutbox) changed(ctx context.Context, statement string) (rows int64, err error) {
	err = s.session(ctx, func(conn *sql.Conn) error {
		result, err := conn.ExecContext(ctx, statement)
		if err == nil {
			rows, err = result.RowsAffected()
		}
		return err
	})
	return rows, err
}

func execute(ctx context.Context, tx sqlx.ExecerContext, statements []string) error {
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
