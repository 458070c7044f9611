// Package mysqllock keeps locks in the rows of a table of MySQL or MariaDB. Its tests run on
// MariaDB 10.11 and MySQL 9.7.
//
// The package needs a *sql.DB of github.com/go-sql-driver/mysql, to one server that takes writes:
// not to a replica, nor to several nodes of a Galera cluster by turns. The DB stays the caller's,
// to be closed after the Locker. The settings of sessions do not matter: autocommit, isolation,
// time zone, timestamp, SQL modes, limits, clientFoundRows and interpolateParams. MySQL has to be
// 8.0.17 or newer, and a proxy must leave the comments in statements; otherwise Acquire returns an
// error that says so. In a MySQL that was started with sysdate-is-now, no session may set
// timestamp. A lock is extended by a connection of the DB's pool: if SetMaxOpenConns bounds the
// pool, and the work under the locks uses it up, locks are lost; a DB of their own with a few
// connections is safer.
package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/sqlname"
	"github.com/cacheaside/cacheaside/lock"
)

// Options are the settings of New. The zero value, and nil, are good defaults.
type Options struct {
	lock.LockerOptions

	// Table is the table of the locks: letters, digits and "_", at most 64, and before it, if need
	// be, a schema and a dot. All processes that share locks use the same. Default:
	// "cacheaside_locks", in the schema of the connection. Set it if there are rules for the names
	// of tables.
	Table string

	// Poll is how long at most a process that waits for a lock in a table sleeps before it looks
	// again. It begins with 2 ms, and doubles the sleep up to Poll; with the default each process
	// that waits for a name reads one row, by its primary key, some 27 times a second. Default: 50
	// ms. From 1 ms to 10 s. Raise it for less load; lower it for a lock that passes on sooner.
	Poll time.Duration
}

// New makes a Locker on rows of a table, which CreateTable or a migration with Schema has made. New
// does no I/O.
//
// A lock lives by the clock of the server, and outlives restarts of it as far as commits do: with
// innodb_flush_log_at_trx_commit=1, else a crash may lose the last second, and a replica that is
// promoted lacks what it has not heard of yet. Then another process can get the lock while the
// holder still has it for up to a third of the TTL, until the watchdog asks. The token tells the
// holders apart: it is greater than the one before by one at least, and at least the server's time
// in microseconds, so that it grows also where rows were lost, as long as the clock does not go
// back meanwhile.
//
// Each name that was ever locked leaves a row, of some 100 bytes. Rows of free locks may be deleted
// at any time, for tokens grow by the clock: DELETE FROM cacheaside_locks WHERE expires_at <
// UTC_TIMESTAMP() - INTERVAL 1 DAY; with READ COMMITTED, else the DELETE locks the rows that it
// leaves, too, and no lock is extended meanwhile.
//
// The user needs SELECT, INSERT and UPDATE on the table. Acquire takes two statements, Extend and
// Release one. Names are in the table, and as hexadecimal digits in the server's logs.
func New(db *sql.DB, options *Options) (*lock.Locker, error) {
	o, err := options.check(db)
	if err != nil {
		return nil, err
	}
	d := &rows{db: db, table: sqlname.Quote(o.Table), poll: o.Poll}
	d.ctx, d.stop = context.WithCancel(context.Background())
	return lock.New(d, &o.LockerOptions)
}

// Schema is the statement that makes the table of these options: for migrations. nil options are
// the defaults.
func Schema(options *Options) (string, error) {
	o := options.withDefaults()
	if err := o.checkTable(); err != nil {
		return "", err
	}
	return schema(sqlname.Quote(o.Table)), nil
}

// CreateTable makes the table if there is none: for programs that may (it needs CREATE), and tests.
// Call it once, before the first lock is acquired. Called again it does nothing; several processes
// may call it.
func CreateTable(ctx context.Context, db *sql.DB, options *Options) error {
	o, err := options.check(db)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, schema(sqlname.Quote(o.Table))); err != nil {
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
		return d, fmt.Errorf("mysqllock: Options.Poll %v: from 1ms to 10s", d.Poll)
	}
	return d, d.checkTable()
}

func (o Options) checkTable() error {
	if !identifier.MatchString(o.Table) {
		return fmt.Errorf(`mysqllock: Options.Table %q: letters, digits and "_", at most 64, with a schema and a dot before it if need be`, o.Table)
	}
	return nil
}
