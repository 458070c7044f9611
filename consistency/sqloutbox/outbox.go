package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Options are the settings of an Outbox. nil and the zero value are good defaults.
type Options struct {
	// Table is the name of the table. For MySQL and PostgreSQL it can be schema.table. In
	// PostgreSQL a name without a schema is in the schema "public", for any search_path.
	// Default: "cacheaside_outbox".
	Table string

	// Namespace separates the items of applications that share a table: a Relay only handles items
	// of its own namespace. It consists of letters, digits, "_", "." and "-", at most 255 bytes.
	// Default: the cacheaside.Options.Prefix of the Cache of the first Writer or Relay that is made
	// with the outbox. Set it if applications with the same Prefix but different Redis servers
	// share a table, or if items are put before there is a Writer or a Relay.
	Namespace string

	// Listen makes relays wait for notifications of PostgreSQL instead of polling the table, so
	// that an idle Relay costs almost nothing. Use pgnotify.Listen. Set it in all processes that
	// write or run a Relay: after a commit that leaves items to relays, a process with it sends a
	// NOTIFY, in a transaction of its own and in the background.
	//
	// A Relay with it looks at the table every 2 s, and when it is notified. If a notification is
	// lost, or none is sent because only PutIn was called, it finds the items at the next look, and
	// then handles them when they are due. More than five relays of an outbox look together about
	// as often as five, and about five of them follow a notification. As long as notifications do
	// not arrive, it polls every consistency.RelayOptions.Poll, and logs why.
	//
	// Listen connects, and listens on channel. It calls received when it listens, and with the
	// payload of each notification. It returns when ctx ends or the connection fails; the Relay
	// polls until then, and calls it again. Each Relay uses one such connection, which is not one
	// of db. Default: nil, relays poll. It is an error in another dialect.
	Listen func(ctx context.Context, channel string, received func(payload string)) error
}

// An Outbox is a consistency.TxQueue in a table of the database that holds the rows. PutIn takes
// part in the transaction of the caller: the item exists if and only if the rows were changed, even
// if the process or the database is killed. Put is as durable as the database.
//
// The statements of Schema create the table. Its rows contain keys in clear text. All times are
// read from the clock of the database, so the clocks of processes need not agree. Time zones and
// other settings of sessions have no effect. An Item.ID is unique within a namespace. A release
// that does not know groups (Key.Group) invalidates all keys of the loader in place of a group.
//
// An Outbox is safe for concurrent use by any number of processes. It begins its own
// transactions on connections of db, in MySQL and PostgreSQL at READ COMMITTED. It repeats them
// after a deadlock, a serialization failure or a lock timeout, and while the database is busy. It
// needs no Close.
//
// SQLite allows one writer at a time. Set a busy timeout in the DSN. Begin transactions that
// write as such (modernc.org/sqlite: _txlock=immediate): a transaction that begins with a read
// fails at its first write if another one has written since. The binary log of MySQL must not be
// in STATEMENT format.
//
// In PostgreSQL an item that a transaction puts more than 10 seconds before its COMMIT can wait
// another 10 seconds, or 20 times the time that it takes to read the index. If that takes longer
// than a third of consistency.RelayOptions.ClaimFor or a statement_timeout, the item waits until it
// takes less, and a Relay raises an alert. pgx prepares the queries that return rows, such as those
// of Claim and Depth. Behind a pool that gives each transaction another connection and does not
// know prepared statements (PgBouncer before 1.21, or with max_prepared_statements = 0), set
// default_query_exec_mode=exec in the DSN. db must reach the primary: a standby refuses even the
// reads of the outbox.
type Outbox struct {
	db         *sql.DB
	text       statements // without a namespace
	owner      owner
	others     others
	clock      clock
	floor      floor // only of PostgreSQL
	listen     func(ctx context.Context, channel string, received func(payload string)) error
	notifier   notifier // only with listen
	alarm      limitedlog.Alarm
	unreadable atomic.Int64
	repaired   atomic.Int64
}

var (
	_ consistency.TxQueue       = (*Outbox)(nil)
	_ consistency.QueueHooks    = (*Outbox)(nil)
	_ consistency.QueueIdentity = (*Outbox)(nil)
)

// New returns an Outbox in db, which the caller closes. It does no I/O: if the table is missing,
// the first use returns an error. It returns an error if the driver of db is known to be that of
// another dialect.
func New(db *sqlx.DB, dialect Dialect, options *Options) (*Outbox, error) {
	var d Options
	if options != nil {
		d = *options
	}
	if db == nil || db.DB == nil {
		return nil, errors.New("sqloutbox: New: db is nil")
	}
	if err := checkNamespace(d.Namespace); err != nil {
		return nil, err
	}
	text, err := newStatements(dialect, cmp.Or(d.Table, defaultTable))
	if err != nil {
		return nil, err
	}
	if err := dialect.fits(db); err != nil {
		return nil, wording.Errorf("sqloutbox: New: %w", err)
	}
	if d.Listen != nil && dialect != Postgres {
		return nil, errors.New("sqloutbox: Options.Listen: only PostgreSQL has notifications")
	}
	return &Outbox{
		db: db.DB, text: text, listen: d.Listen,
		owner: owner{namespace: d.Namespace, fixed: d.Namespace != ""},
	}, nil
}

// CreateTable creates the table if it does not exist, for tests and first steps. It does not
// change an existing table. In production, add the statements of Schema to your migrations. In
// SQLite and PostgreSQL it returns an error if another table has an index with the name of the
// outbox' index, because the outbox has no index then.
func (o *Outbox) CreateTable(ctx context.Context) error {
	err := sqldb.CreateTable(ctx, o.db, o.text.schema())
	if err == nil {
		err = o.checkIndex(ctx)
	}
	return o.failed("create the table", err)
}

// checkIndex returns an error if the index of the table belongs to another table. CREATE INDEX IF
// NOT EXISTS compares only its name.
func (o *Outbox) checkIndex(ctx context.Context) error {
	query := o.text.ownIndexes()
	if query == "" {
		return nil
	}
	var indexes int
	if err := o.db.QueryRowContext(ctx, query).Scan(&indexes); err != nil || indexes > 0 {
		return err
	}
	return fmt.Errorf("the index %s belongs to another table, so the table %s has no index: rename that index, "+
		"or set another sqloutbox.Options.Table", o.text.index(), o.text.name)
}

// Unreadable returns the number of rows without a valid key that Claim has found; another program
// must have written them. Key.Check fails for the Key of their items.
func (o *Outbox) Unreadable() int64 { return o.unreadable.Load() }

// Put implements consistency.Queue. An ID has 32 hexadecimal digits.
func (o *Outbox) Put(ctx context.Context, items ...consistency.Item) error {
	inserts, err := o.inserts(items, true)
	if err == nil && len(inserts) > 0 {
		for i := range inserts {
			inserts[i] = o.text.aloneInsert(inserts[i])
		}
		if err = o.session(ctx, func(conn *sql.Conn) error { return execute(ctx, conn, inserts) }); err == nil {
			o.Committed(items...)
		}
	}
	return o.failed("put", err)
}

// PutIn is Put in the transaction tx of the caller: the items become visible with its commit.
// After an error, roll the transaction back. If PostgreSQL has refused a statement, it executes
// nothing else in the transaction; after other errors it would commit without the items. One call
// costs one trip to the database for up to some hundreds of items, independent of the DSN. The
// delay Item.After begins with PutIn, not with the commit.
func (o *Outbox) PutIn(ctx context.Context, tx sqlx.ExecerContext, items ...consistency.Item) error {
	mayExist := slices.ContainsFunc(items, func(i consistency.Item) bool { return !i.New })
	inserts, err := o.inserts(items, mayExist)
	if err == nil && tx == nil {
		err = errors.New("the transaction is nil")
	}
	if err == nil {
		err = execute(ctx, tx, inserts)
	}
	return o.failed("put", err)
}

// insertItems and insertBytes limit one INSERT, because servers refuse statements of some
// megabytes.
const (
	insertItems = 500
	insertBytes = 512 << 10
)

// inserts checks items, and returns the statements that insert them. If mayExist is false, these do
// not handle existing rows, which saves MariaDB a tenth of their time.
func (o *Outbox) inserts(items []consistency.Item, mayExist bool) ([]string, error) {
	text, err := o.ownStatements()
	if err != nil {
		return nil, err
	}
	ids := make([]rowID, len(items))
	for n, item := range items {
		var err error
		if ids[n], err = checkItem(item); err != nil {
			return nil, err
		}
	}
	var all []string
	var b []byte
	first := 0
	for n := range items {
		if n == first {
			b = text.beginInsert(b[:0])
		} else {
			b = append(b, ',')
		}
		b = text.insertRow(b, ids[n], &items[n])
		if n+1-first == insertItems || len(b) >= insertBytes || n+1 == len(items) {
			if mayExist {
				b = text.endInsert(b)
			}
			all = append(all, string(b))
			first = n + 1
		}
	}
	return all, nil
}

// Depth implements consistency.Queue for the namespace of the outbox. It counts at most 100,001
// items, those due first, so that it takes only milliseconds even after an outage: 100,001 means
// 100,001 or more. Oldest is the age of the oldest of them. Depth.Others is up to a minute old.
func (o *Outbox) Depth(ctx context.Context) (consistency.Depth, error) {
	var d consistency.Depth
	text, err := o.ownStatements()
	if err == nil {
		err = o.reading(ctx, func(on querier) (err error) {
			from, began := o.floor.expire(), time.Now()
			r, err := readDepth(ctx, on, text, from)
			if err != nil {
				if o.text.dialect == Postgres && from == noFloor && timedOut(err) {
					o.floor.readingTimedOut(err, time.Since(began))
				}
				return err
			}
			ended := time.Now()
			o.clock.observe(r.now, r.latest, began, ended)
			o.floor.observe(from, r.first, r.now, ended.Sub(began))
			d = r.Depth
			d.Others, err = o.countOthers(ctx, on)
			return err
		})
	}
	return d, o.failed("depth", err)
}

// A depthRow is the result of a query of the depth.
type depthRow struct {
	consistency.Depth
	latest int64 // when the newest of the items was put
	first  int64 // the first due time; without items, the current time
	now    int64 // the current time of the database
}

// readDepth reads the depth of the rows that are due at from or later.
func readDepth(ctx context.Context, on querier, text statements, from int64) (r depthRow, err error) {
	var args []any
	if text.dialect == Postgres {
		args = []any{from}
	}
	var created int64
	var now sql.NullInt64
	err = on.QueryRowContext(ctx, text.depth(), args...).Scan(&r.Items, &r.Due, &created, &r.latest, &r.first, &now)
	if err == nil && !now.Valid {
		err = errors.New(sqldb.NoServerTime)
	}
	r.now = now.Int64
	if r.Items == 0 {
		r.first = r.now
	} else {
		r.Oldest = time.Duration(max(0, r.now-max(0, created))) * time.Microsecond
	}
	return r, err
}

// Depths returns the Depth of each namespace that has items, up to 100 namespaces, ordered by
// name. It is for monitoring, and does not depend on the namespace of the outbox.
func (o *Outbox) Depths(ctx context.Context) (map[string]consistency.Depth, error) {
	var all map[string]consistency.Depth
	err := o.reading(ctx, func(on querier) error {
		all = make(map[string]consistency.Depth)
		names, err := o.namespaces(ctx, on)
		for _, name := range names {
			if err != nil {
				return err
			}
			r, err := readDepth(ctx, on, o.text.in(name), noFloor)
			if err != nil {
				return err
			}
			all[name] = r.Depth
		}
		return err
	})
	return all, o.failed("depth", err)
}

// failed wraps err with the operation.
func (o *Outbox) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return wording.Errorf("sqloutbox: %s: %w", op, o.explain(err))
}
