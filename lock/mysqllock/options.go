// Package mysqllock stores locks in the rows of a table of MySQL or MariaDB. It is tested with
// MariaDB 10.11 and MySQL 9.7.
//
// The package needs a *sql.DB of github.com/go-sql-driver/mysql that connects to one writable
// server, not to a replica, and not to alternating nodes of a Galera cluster. The caller closes the
// DB after the Locker. The package works with any session settings: autocommit, isolation, time
// zone, timestamp, SQL modes, limits, clientFoundRows and interpolateParams. The package needs
// MySQL 8.0.17 or later, and a proxy must not remove the comments in statements; otherwise Acquire
// returns an error that says so. If MySQL runs with sysdate-is-now, no session may set timestamp.
//
// Extensions use a connection of the DB's pool. If SetMaxOpenConns limits the pool and the work
// under the locks uses all connections, locks are lost. A separate DB with a few connections is
// safer.
package mysqllock

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

	// Table is the table of the locks: at most 64 letters, digits and "_", optionally preceded by
	// a schema and a dot. All processes that share locks must use the same table. Default:
	// "cacheaside_locks" in the schema of the connection.
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
// A lock expires by the clock of the server, so the clocks of a primary and its replicas must
// agree: if that of a promoted replica is ahead, locks are free too early by the difference. A
// lock survives restarts as far as committed transactions do. Without
// innodb_flush_log_at_trx_commit=1, a crash may lose the last second. A promoted replica lacks
// what was not replicated to it. Another process can then acquire the lock while the first holder
// still believes that it holds it: for up to a third of the TTL, until the watchdog's next
// request, and longer if that request still reaches the old primary. So fence off the old
// primary. The token distinguishes the holders. It is greater than the previous one, and at least
// the server's time in microseconds. So tokens increase even if rows are lost, as long as the
// clock is not set back at the same time.
//
// Each name that was ever locked leaves a row of about 100 bytes. Rows of free locks may be
// deleted at any time, because tokens grow with the clock: DELETE FROM cacheaside_locks WHERE
// expires_at < UTC_TIMESTAMP() - INTERVAL 1 DAY. Use READ COMMITTED; otherwise the DELETE also
// locks the rows that it does not delete, and no lock can be extended while it runs.
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
	return rowlock.New(db, table{sqldb.Quote(o.Table)}, o.Poll)
}

// Schema returns the statement that creates the table, for migrations. A nil options means the
// defaults.
func Schema(options *Options) (string, error) {
	o := options.withDefaults()
	if err := o.checkTable(); err != nil {
		return "", err
	}
	return schema(sqldb.Quote(o.Table)), nil
}

// CreateTable creates the table if it does not exist, for tests and for programs that have the
// CREATE privilege. Call it once, before the first lock is acquired. It may be called again, and
// by several processes.
func CreateTable(ctx context.Context, db *sql.DB, options *Options) error {
	o, err := options.check(db)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, schema(sqldb.Quote(o.Table))); err != nil {
		return fmt.Errorf("mysqllock: create the table %s: %w", o.Table, err)
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
		return d, errors.New("mysqllock: the db is nil")
	}
	if d.Poll < time.Millisecond || d.Poll > 10*time.Second {
		return d, fmt.Errorf("mysqllock: Options.Poll %v: must be from 1ms to 10s", d.Poll)
	}
	return d, d.checkTable()
}

func (o Options) checkTable() error {
	if !identifier.MatchString(o.Table) {
		return fmt.Errorf(
			`mysqllock: Options.Table %q: must be at most 64 letters, digits and "_", `+
				"optionally preceded by a schema and a dot", o.Table)
	}
	return nil
}
