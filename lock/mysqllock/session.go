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

// session is one connection. On a connection of its own, database/sql repeats no statement by
// itself.
type session struct {
	conn    *sql.Conn
	timeout time.Duration // of each statement
	broken  bool          // it is not to be used again
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

// close gives the connection back, or ends it.
func (s *session) close() {
	if s.broken {
		s.conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // that is how database/sql is told
	}
	s.conn.Close() //nolint:errcheck // nothing is to be done about it
}

// change is what a statement has done.
type change struct {
	matched bool
	yes     bool
	token   int64
}

// change carries out a statement of this package, and commits it where the session does not do so
// by itself.
func (s *session) change(ctx context.Context, statement string) (c change, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		result, err := s.conn.ExecContext(ctx, statement)
		if err != nil {
			return err
		}
		id, err := result.LastInsertId()
		if err == nil && id&1 == 0 { // also if none has matched: it may have locked a row
			_, err = s.conn.ExecContext(ctx, "COMMIT")
		}
		if err == nil {
			c = change{matched: id != 0, yes: id&2 != 0, token: id >> 2}
		}
		return err
	})
	return c, err
}

// within bounds f by the time-out. After an error the connection is not used again.
func (s *session) within(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := f(ctx)
	s.broken = s.broken || err != nil
	return err
}

// row is a lock as it was read.
type row struct {
	exists bool
	clock  int64     // of the server, in microseconds
	asked  time.Time // before that
	token  int64
	owner  string
	left   time.Duration // not above 0: it is free
}

// read reads a lock. Without autocommit what a transaction sees may be old: then it begins a new
// one.
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
	var clock, token, left sql.NullInt64
	var owner sql.NullString
	r.asked = time.Now()
	err = s.conn.QueryRowContext(ctx, statement).Scan(&autocommit, &clock, &token, &owner, &left)
	if err == nil && !clock.Valid {
		err = errNoClock
	}
	r.clock, r.exists, r.token, r.owner, r.left = clock.Int64, token.Valid, token.Int64, owner.String, time.Duration(left.Int64)*time.Microsecond
	return r, autocommit, err
}

const (
	lockWaitTimeout = 1205
	deadlock        = 1213
	checkRead       = 1020 // a transaction that has seen an older row, where innodb_snapshot_isolation is set
	noTable         = 1146
)

var errNoClock = errors.New(sqlclock.Hint)

// again reports whether it may help to ask once more, on another connection.
func again(err error) bool {
	if errors.Is(err, errNoClock) {
		return false
	}
	answer, ok := errors.AsType[*mysql.MySQLError](err)
	return !ok || slices.Contains([]uint16{lockWaitTimeout, deadlock, checkRead}, answer.Number)
}

// explain says what to do about an error.
func explain(table string, err error) error {
	if answer, ok := errors.AsType[*mysql.MySQLError](err); ok && answer.Number == noTable {
		return fmt.Errorf("the table %s is missing (see mysqllock.CreateTable): %w", table, err)
	}
	return err
}
