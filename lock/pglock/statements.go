package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/lock/internal/rowlock"
)

// table is the table of the locks. It implements rowlock.Table.
type table struct {
	name string // quoted
}

func (t table) Read(ctx context.Context, c *sql.Conn, key string) (r rowlock.Row, err error) {
	var token, remaining sql.NullInt64
	var owner sql.NullString
	err = readCommitted(ctx, c, func() error {
		return c.QueryRowContext(ctx, readSQL(t.name), []byte(key)).Scan(&r.Clock, &token, &owner, &remaining)
	})
	r.Exists, r.Token, r.Owner, r.Remaining =
		token.Valid, token.Int64, owner.String, time.Duration(remaining.Int64)*time.Microsecond
	return r, err
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

// exec executes a statement of this package, and reports whether it has changed a row.
func exec(ctx context.Context, c *sql.Conn, statement string) (changed bool, err error) {
	err = readCommitted(ctx, c, func() error {
		result, err := c.ExecContext(ctx, statement)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		changed = n > 0
		return err
	})
	return changed, err
}

// readCommitted executes one statement, first in its own transaction with the isolation level of
// the session. At a level above READ COMMITTED it may conflict with statements about other locks.
// After such a conflict, readCommitted executes it again at READ COMMITTED.
func readCommitted(ctx context.Context, c *sql.Conn, statement func() error) error {
	err := statement()
	if sqldb.SQLState(err) != serializationFailure {
		return err
	}
	if _, err := c.ExecContext(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	if err := statement(); err != nil {
		return err
	}
	_, err = c.ExecContext(ctx, "COMMIT")
	return err
}

// Codes of errors (PostgreSQL documentation, appendix A).
const (
	readOnly             = "25006"
	noPreparedStatement  = "26000"
	serializationFailure = "40001"
	insufficientRights   = "42501"
	undefinedTable       = "42P01"
	duplicatePrepared    = "42P05"
)

// Retryable reports true for lost connections (class 08), conflicts (40), limits of connections
// (53), locks that were not available in time (55), and servers that are stopping or starting
// (57). A server that is read-only may have become a standby, and the next connection may lead to
// the new primary.
func (t table) Retryable(err error) bool {
	state := sqldb.SQLState(err)
	return len(state) < 2 || state == readOnly || slices.Contains([]string{"08", "40", "53", "55", "57"}, state[:2])
}

func (t table) Explain(err error) error {
	switch sqldb.SQLState(err) {
	case undefinedTable:
		return fmt.Errorf("the table %s is missing (see pglock.CreateTable): %w", t.name, err)
	case insufficientRights:
		return fmt.Errorf("the role lacks a right on the table %s, or row-level security hides rows of it (see "+
			"docs/guides/database.md#rights): %w", t.name, err)
	case readOnly:
		return fmt.Errorf("the server is read-only, perhaps a standby; connect to the primary (in a DSN, "+
			"target_session_attrs=read-write): %w", err)
	case noPreparedStatement, duplicatePrepared:
		return fmt.Errorf("a pooler does not support prepared statements (for pgx, add default_query_exec_mode=exec "+
			"to the DSN): %w", err)
	}
	return err
}
