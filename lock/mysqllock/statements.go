package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/lock/internal/rowlock"
)

// table is the table of the locks. It implements rowlock.Table.
type table struct {
	name string // quoted
}

// Read reads a lock. Without autocommit the session may see an old snapshot, so Read commits and
// reads again.
func (t table) Read(ctx context.Context, c *sql.Conn, key string) (r rowlock.Row, err error) {
	for range 2 {
		var autocommit bool
		if r, autocommit, err = t.readOnce(ctx, c, key); err == nil && !autocommit {
			_, err = c.ExecContext(ctx, "COMMIT")
		}
		if err != nil || autocommit {
			break
		}
	}
	return r, err
}

func (t table) readOnce(ctx context.Context, c *sql.Conn, key string) (r rowlock.Row, autocommit bool, err error) {
	var clock, token, remaining sql.NullInt64
	var owner sql.NullString
	err = c.QueryRowContext(ctx, readSQL(t.name, key)).Scan(&autocommit, &clock, &token, &owner, &remaining)
	if err == nil && !clock.Valid {
		err = errNoClock
	}
	r = rowlock.Row{Exists: token.Valid, Clock: clock.Int64, Token: token.Int64, Owner: owner.String,
		Remaining: time.Duration(remaining.Int64) * time.Microsecond}
	return r, autocommit, err
}

func (t table) Insert(ctx context.Context, c *sql.Conn, key string) error {
	_, err := exec(ctx, c, insertSQL(t.name, key))
	return err
}

func (t table) Take(ctx context.Context, c *sql.Conn, key string, r rowlock.Take) (taken bool, err error) {
	return exec(ctx, c, takeSQL(t.name, key, r))
}

func (t table) Extend(ctx context.Context, c *sql.Conn, key, id string, ttl time.Duration) (held bool, err error) {
	return exec(ctx, c, extendSQL(t.name, key, id, ttl))
}

func (t table) Release(ctx context.Context, c *sql.Conn, key, id string) (held bool, err error) {
	return exec(ctx, c, releaseSQL(t.name, key, id))
}

func (t table) CleanUp(ctx context.Context, c *sql.Conn, key string, requests []rowlock.Request) error {
	_, err := exec(ctx, c, cleanUpSQL(t.name, key, requests))
	return err
}

// exec executes a statement of this package, and returns its outcome: false if no row has matched.
// It commits if the session does not use autocommit.
func exec(ctx context.Context, c *sql.Conn, statement string) (ok bool, err error) {
	result, err := c.ExecContext(ctx, statement)
	if err != nil {
		return false, err
	}
	id, err := result.LastInsertId()
	if err == nil && id&1 == 0 { // even if no row matched: the statement may have locked one
		_, err = c.ExecContext(ctx, "COMMIT")
	}
	return err == nil && id&2 != 0, err
}

const (
	lockWaitTimeout = 1205
	deadlock        = 1213
	recordChanged   = 1020 // the transaction has read an older row; needs innodb_snapshot_isolation
	noTable         = 1146
	dataTooLong     = 1406
)

var errNoClock = errors.New(sqldb.NoServerTime)

func (t table) Retryable(err error) bool {
	if errors.Is(err, errNoClock) {
		return false
	}
	mysqlErr, ok := errors.AsType[*mysql.MySQLError](err)
	return !ok || slices.Contains([]uint16{lockWaitTimeout, deadlock, recordChanged}, mysqlErr.Number)
}

func (t table) Explain(err error) error {
	mysqlErr, ok := errors.AsType[*mysql.MySQLError](err)
	switch {
	case ok && mysqlErr.Number == noTable:
		return fmt.Errorf("the table %s is missing (see mysqllock.CreateTable): %w", t.name, err)
	case ok && mysqlErr.Number == dataTooLong:
		return fmt.Errorf("a column of the table %s is too short (see mysqllock.Schema): %w", t.name, err)
	}
	return err
}
