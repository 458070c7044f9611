// Package pglock stores locks in the rows of a table of PostgreSQL. It is tested with PostgreSQL
// 15.
//
// It does not use advisory locks. They belong to a session: if a pool replaces the connection, or
// the server fails over, another process can acquire the lock and the holder does not notice. They
// have no lease and no fencing token, and a PgBouncer that pools transactions gives the session
// to other clients. A row needs no session: the package works through such a pooler.
//
// The package needs a *sql.DB that connects to the primary, not to a standby. With several hosts in
// the DSN, set target_session_attrs=read-write. The driver's errors must have a method SQLState()
// string. The package is tested with github.com/jackc/pgx/v5/stdlib, and does not import it. The
// caller closes the DB after the Locker.
//
// The package works with any session settings, such as isolation, time zone, and pgx's query
// modes, except default_transaction_read_only. Changes use no prepared statements. Reads use those
// of the driver. For a pooler that does not support them, such as PgBouncer before 1.21 in
// transaction mode, add default_query_exec_mode=exec to the DSN of pgx.
//
// Extensions use a connection of the DB's pool. If SetMaxOpenConns limits the pool and the work
// under the locks uses all connections, locks are lost. A separate DB with a few connections is
// safer.
package pglock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/internal/rowlock"
)

// Options holds the settings of New. A nil pointer and the zero value mean the defaults.
type Options struct {
	lock.Options

	// Table is the table of the locks: at most 63 letters, digits and "_", optionally preceded by
	// a schema and a dot. Without a schema it is in the schema "public", for any search_path. The
	// case of letters matters. All processes that share locks must use the same table. Default:
	// "cacheaside_locks".
	Table string

	// Poll is the maximum time between two reads of a lock by a process that waits for it. The
	// time starts at 2 ms and doubles up to Poll. With the default, each process that waits for a
	// lock reads one row by its primary key about 27 times a second. Default: 50 ms. From 1 ms to
	// 10 s. Raise it for less load; lower it so that a released lock is acquired sooner.
	Poll time.Duration
}

// New returns a Locker on the rows of a table. Create the table with CreateTable, or with a
// migration that uses Schema. New does no I/O.
//
// A lock expires by the clock of the server, so the clocks of a primary and its standbys must
// agree: if that of a promoted standby is ahead, locks are free too early by the difference. A
// lock survives restarts as far as committed transactions do. With synchronous_commit=off, a
// crash may lose the last moments. A promoted standby lacks what was not replicated to it.
// Another process can then acquire the lock while the first holder still believes that it holds
// it: for up to a third of the TTL, until the watchdog's next request, and longer if that request
// still reaches the old primary. So fence off the old primary. The token distinguishes the
// holders. It is greater than the previous one, and at least the server's time in microseconds.
// So tokens increase even if rows are lost, as long as the clock is not set back at the same
// time.
//
// While a server shuts down or has become a standby, requests fail, and are repeated on another
// connection. A lock that its holder can extend in time is kept.
//
// Each name that was ever locked leaves a row of about 100 bytes. Rows of free locks may be
// deleted at any time, because tokens grow with the clock: DELETE FROM cacheaside_locks WHERE
// expires_at < now() - interval '1 day'.
//
// The database user needs SELECT, INSERT and UPDATE on the table. Acquire takes two statements;
// Extend and Release take one. Names appear in the table, and as hexadecimal digits in the
// server's logs.
func New(db *sql.DB, options *Options) (*lock.Locker, error) {
	o, err := options.check(db)
	if err != nil {
		return nil, err
	}
	return lock.New(newDriver(db, o), &o.Options)
}

func newDriver(db *sql.DB, o Options) driver.Driver {
	return rowlock.New(db, table{sqldb.OwnPostgres(o.Table)}, o.Poll)
}

// Schema returns the statement that creates the table, for migrations. A nil options means the
// defaults.
func Schema(options *Options) (string, error) {
	o := options.withDefaults()
	if err := o.checkTable(); err != nil {
		return "", err
	}
	return schema(sqldb.OwnPostgres(o.Table)), nil
}

// CreateTable creates the table if it does not exist, for tests and for programs that have the
// CREATE privilege on the schema. Call it once, before the first lock is acquired. It may be
// called again, and by several processes.
func CreateTable(ctx context.Context, db *sql.DB, options *Options) error {
	o, err := options.check(db)
	if err != nil {
		return err
	}
	if err := sqldb.CreateTable(ctx, db, schema(sqldb.OwnPostgres(o.Table))); err != nil {
		return fmt.Errorf("pglock: create the table %s: %w", o.Table, err)
	}
	return nil
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Table = cmp.Or(d.Table, "cacheaside_locks")
	d.Poll = cmp.Or(d.Poll, 50*time.Millisecond)
	return d
}

func (o *Options) check(db *sql.DB) (Options, error) {
	d := o.withDefaults()
	if db == nil {
		return d, errors.New("pglock: the db is nil")
	}
	if d.Poll < time.Millisecond || d.Poll > 10*time.Second {
		return d, fmt.Errorf("pglock: Options.Poll %v: must be from 1ms to 10s", d.Poll)
	}
	return d, d.checkTable()
}

func (o Options) checkTable() error {
	if !identifier.MatchString(o.Table) {
		return fmt.Errorf(
			`pglock: Options.Table %q: must be at most 63 letters, digits and "_", `+
				"optionally preceded by a schema and a dot", o.Table)
	}
	return nil
}
