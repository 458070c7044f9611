package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/internal/sqlclock"
)

// session is one connection. On a dedicated connection, database/sql does not repeat statements.
type session struct {
	conn    *sql.Conn
	timeout time.Duration // of each statement
	broken  bool          // the connection must not be used again
}

func open(ctx context.Context, db *sql.DB, timeout time.Duration) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn, timeout: timeout}, nil
}

// close returns the connection to the pool, or closes it if it is broken.
func (s *session) close() {
	if s.broken {
		s.conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // makes database/sql discard it
	}
	s.conn.Close() //nolint:errcheck // the session is not used again
}

// change is the outcome of a statement.
type change struct {
	matched bool
	ok      bool
	token   int64
}

// change executes a statement of this package. It commits if the session does not use autocommit.
func (s *session) change(ctx context.Context, statement string) (c change, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		result, err := s.conn.ExecContext(ctx, statement)
		if err != nil {
			return err
		}
		id, err := result.LastInsertId()
		if err == nil && id&1 == 0 { // even if no row matched: the statement may have locked one
			_, err = s.conn.ExecContext(ctx, "COMMIT")
		}
		if err == nil {
			c = change{matched: id != 0, ok: id&2 != 0, token: id >> 2}
		}
		return err
	})
	return c, err
}

// within runs f with the timeout. After an error the connection is not used again.
func (s *session) within(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := f(ctx)
	s.broken = s.broken || err != nil
	return err
}

// row is the state of a lock that was read.
type row struct {
	exists    bool
	clock     int64     // server time in microseconds
	readAt    time.Time // local time before the read
	token     int64
	owner     string
	remaining time.Duration // until the lock expires; the lock is free if it is not positive
}

// read reads a lock. Without autocommit the session may see an old snapshot, so read commits and
// reads again.
func (s *session) read(ctx context.Context, statement string) (r row, err error) {
	for range 2 {
		var autocommit bool
		err = s.within(ctx, func(ctx context.Context) (err error) {
			if r, autocommit, err = s.readOnce(ctx, statement); err == nil && !autocommit {
				_, err = s.conn.ExecContext(ctx, "COMMIT")
			}
			return err
		})
		if err != nil || autocommit {
			break
		}
	}
	return r, err
}

func (s *session) readOnce(ctx context.Context, statement string) (r row, autocommit bool, err error) {
	var clock, token, remaining sql.NullInt64
	var owner sql.NullString
	r.readAt = time.Now()
	err = s.conn.QueryRowContext(ctx, statement).Scan(&autocommit, &clock, &token, &owner, &remaining)
	if err == nil && !clock.Valid {
		err = errNoClock
	}
	r.clock, r.exists, r.token, r.owner, r.remaining = clock.Int64, token.Valid, token.Int64, owner.String, time.Duration(remaining.Int64)*time.Microsecond
	return r, autocommit, err
}

const (
	lockWaitTimeout = 1205
	deadlock        = 1213
	recordChanged   = 1020 // the transaction has read an older row; needs innodb_snapshot_isolation
	noTable         = 1146
)

var errNoClock = errors.New(sqlclock.Hint)

// retryable reports whether a retry on another connection may succeed.
func retryable(err error) bool {
	if errors.Is(err, errNoClock) {
		return false
	}
	mysqlErr, ok := errors.AsType[*mysql.MySQLError](err)
	return !ok || slices.Contains([]uint16{lockWaitTimeout, deadlock, recordChanged}, mysqlErr.Number)
}

// explain adds to err what the user can do about it.
func explain(table string, err error) error {
	if mysqlErr, ok := errors.AsType[*mysql.MySQLError](err); ok && mysqlErr.Number == noTable {
		return fmt.Errorf("the table %s is missing (see mysqllock.CreateTable): %w", table, err)
	}
	return err
}
