package sqloutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// Repetitions after a conflict with another transaction.
const (
	outboxAttempts   = 5
	outboxRetryDelay = 10 * time.Millisecond // before the second attempt; doubled for each further one
)

// session calls work with a connection. Each statement of work is a transaction of its own, so a
// process that is stopped between two statements holds no locks. The COMMIT at the end is for
// sessions without autocommit.
//
// In MySQL the first statement, or all of them, are READ COMMITTED. At that level rows are
// locked, but not the gaps between them, into which other transactions insert. After a deadlock
// or a lock wait timeout, session calls work again.
func (o *Outbox) session(ctx context.Context, work func(*sql.Conn) error) error {
	begin, end := o.text.sessionStatements()
	return retryConflicts(ctx, func() error { return o.try(ctx, begin, end, work) })
}

// A querier is an *sql.DB, an *sql.Conn or an *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// reading calls work, which only reads, as session does. Except in SQLite it does so in a
// transaction. A proxy that sends reads to replicas, which may lag, sends the reads of a
// transaction to the primary. In PostgreSQL the transaction is READ WRITE, because such a proxy
// sends a READ ONLY one to a replica. It is READ COMMITTED, so it locks no rows at any isolation
// level of the session. It keeps the table from being altered. If the process is stopped in it,
// PostgreSQL ends its session after minIdle.
func (o *Outbox) reading(ctx context.Context, work func(querier) error) error {
	if o.text.dialect == SQLite {
		return retryConflicts(ctx, func() error { return work(o.db) })
	}
	if o.text.dialect == Postgres {
		return o.transaction(ctx, minIdle, func(conn *sql.Conn) error { return work(conn) })
	}
	return retryConflicts(ctx, func() error {
		tx, err := o.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		if err := work(tx); err != nil {
			_ = tx.Rollback() // the transaction has changed nothing
			return err
		}
		return tx.Commit()
	})
}

// minIdle is the minimum time that a transaction in PostgreSQL may be idle: on a busy machine, a
// process can be slow.
const minIdle = 5 * time.Second

// transaction begins a transaction, and calls work with its connection. The server ends the session
// if the transaction is idle for the duration idle, for example because the process is stopped.
// Otherwise its locks would stay.
func (o *Outbox) transaction(ctx context.Context, idle time.Duration, work func(*sql.Conn) error) error {
	begin := fmt.Sprintf("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; "+
		"SET LOCAL idle_in_transaction_session_timeout = %d; %s; %s",
		min(idle.Milliseconds(), math.MaxInt32), allRows, postgresSettings)
	return retryConflicts(ctx, func() error { return o.try(ctx, []string{begin}, []string{"COMMIT"}, work) })
}

// retryConflicts calls try until it returns another error than a conflict with another
// transaction, at most outboxAttempts times.
func retryConflicts(ctx context.Context, try func() error) (err error) {
	for i := range outboxAttempts {
		if i > 0 && retry.Sleep(ctx, retry.Delay(i, outboxRetryDelay, time.Second)) != nil {
			break
		}
		if err = try(); err == nil || ctx.Err() != nil || !isConflict(err) {
			break
		}
	}
	return err
}

// try calls work between the statements begin and end, on one connection.
func (o *Outbox) try(ctx context.Context, begin, end []string, work func(*sql.Conn) error) (err error) {
	conn, err := o.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && len(begin) > 0 { // a transaction may be open; closing the connection ends it
			//nolint:errcheck // ErrBadConn makes database/sql close the connection
			conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		conn.Close() //nolint:errcheck // the error has no consequence
	}()
	if err := execute(ctx, conn, begin); err != nil {
		return err
	}
	if err := work(conn); err != nil {
		return err
	}
	return execute(ctx, conn, end)
}

// The errors of MySQL that are handled.
const (
	mysqlCheckRead = 1020 // a row has changed since it was read; only with innodb_snapshot_isolation
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

// The errors of PostgreSQL that are handled (PostgreSQL documentation, "Error Codes").
const (
	postgresSerialization = "40001"
	postgresDeadlock      = "40P01"
	postgresLockTimeout   = "55P03"
	postgresIntegrity     = "23" // the beginning of the codes of violated constraints
	postgresNoSchema      = "3F000"
	postgresNoTable       = "42P01"
	postgresNoColumn      = "42703"
	postgresType          = "42804"
	postgresNoKey         = "42P10"
	postgresPrivilege     = "42501" // also by row-level security
	postgresCanceled      = "57014" // also by a statement_timeout
	postgresNotPrepared   = "26000" // in this session of a pool
	postgresPrepared      = "42P05"
)

// isConflict reports whether err is a conflict with another transaction, so that the work can be
// repeated. SQLite drivers have no common error type, but the messages are those of SQLite.
func isConflict(err error) bool {
	switch sqldb.SQLState(err) {
	case postgresSerialization, postgresDeadlock, postgresLockTimeout:
		return true
	}
	if mysqlErr, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return mysqlErr.Number == mysqlLockWait || mysqlErr.Number == mysqlDeadlock || mysqlErr.Number == mysqlCheckRead
	}
	return strings.Contains(err.Error(), "database is locked") ||
		strings.Contains(err.Error(), "database table is locked")
}

// timedOut reports whether err means that a query in PostgreSQL has taken too long.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || err != nil && sqldb.SQLState(err) == postgresCanceled
}

// explain adds to an error what to do about it, and removes the parts of the statement that the
// server quotes, which may be keys.
func (o *Outbox) explain(err error) error {
	switch sqldb.SQLState(err) {
	case postgresNoTable, postgresNoSchema:
		return fmt.Errorf("the table %s is missing (see Dialect.Schema): %w", o.text.name, err)
	case postgresNoColumn, postgresType, postgresNoKey:
		return fmt.Errorf("the table %s has the wrong columns or the wrong key (see Dialect.Schema): %w",
			o.text.name, err)
	case postgresPrivilege:
		return fmt.Errorf("the role lacks a right on the table %s, or row-level security hides rows of it (see "+
			"docs/guides/database.md#rights): %w", o.text.name, err)
	case postgresNotPrepared, postgresPrepared:
		return fmt.Errorf("a pool of connections does not know prepared statements (for pgx, add "+
			"default_query_exec_mode=exec to the DSN): %w", err)
	}
	mysqlErr, ok := errors.AsType[*mysql.MySQLError](err)
	switch {
	case !ok && strings.Contains(err.Error(), "no such table"), ok && mysqlErr.Number == mysqlNoTable:
		return fmt.Errorf("the table %s is missing (see Dialect.Schema): %w", o.text.name, err)
	case !ok && (strings.Contains(err.Error(), "no such column") || strings.Contains(err.Error(), "has no column")),
		ok && (mysqlErr.Number == mysqlNoColumn || mysqlErr.Number == mysqlNoIndex):
		return fmt.Errorf("the table %s has the wrong columns (see Dialect.Schema): %w", o.text.name, err)
	case ok && mysqlErr.Number == mysqlRange, !ok && strings.Contains(err.Error(), "ON CONFLICT clause does not match"):
		return fmt.Errorf("the table %s was created by an older release, and its primary key lacks the "+
			"namespace: %s (see docs/migration.md): %w", o.text.name, o.text.newKey(), err)
	case ok && mysqlErr.Number == mysqlNull:
		return redacted(mysqlErr, sqldb.NoServerTime)
	case ok && mysqlErr.Number == mysqlSyntax:
		return redacted(mysqlErr, "the server does not know this SQL (MariaDB needs 10.6, MySQL 8.0.17)")
	case ok && mysqlErr.Number == mysqlBadText:
		return redacted(mysqlErr, "a column is not binary (see Dialect.Schema)")
	}
	return err
}

func redacted(err *mysql.MySQLError, message string) error {
	return &mysql.MySQLError{Number: err.Number, SQLState: err.SQLState, Message: message}
}

// changed executes a statement in a session, and returns the number of changed rows.
func (o *Outbox) changed(ctx context.Context, statement string) (rows int64, err error) {
	err = o.session(ctx, func(conn *sql.Conn) error {
		result, err := conn.ExecContext(ctx, o.text.alone(statement))
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
