package consistency

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/sqlclock"
)

// SQLOutboxOptions are the settings of an SQLOutbox. nil, and the zero value, are good defaults.
type SQLOutboxOptions struct {
	// Table names the table of the items. For MySQL it may be schema.table. Default:
	// "cacheaside_outbox".
	Table string

	// Namespace tells whose items these are: a Relay does items of its own namespace only, so that
	// applications can share a table. Letters, digits, "_", "." and "-", 255 at most. Default: the
	// Options.Prefix of the Cache of the first Writer or Relay that is made with the outbox. Set it
	// where applications with the same Prefix, but not the same Redis, share a table, and where
	// items are put before there is a Writer or a Relay.
	Namespace string
}

// SQLOutbox is a Queue in a table of the database of the rows. PutIn takes part in the caller's
// transaction: the item is there if and only if the rows were changed, whatever is killed, and
// whenever. Put is as durable as the database.
//
// The table is made by Schema's statements. Its rows show keys in clear. All times are by the
// database's clock, so the clocks of processes need not agree. Time zones and other settings of
// sessions do not matter. An Item.ID names an item of one namespace.
//
// An SQLOutbox is safe for concurrent use by any number of processes. It begins transactions of its
// own, at READ COMMITTED in MySQL, on connections of db, and tries these again after a deadlock, a
// lock that was waited for in vain, or a database that is busy. It needs no Close. SQLite has one
// writer at a time: give the DSN a busy timeout, and have transactions that write begin as such
// (modernc.org/sqlite: _txlock=immediate), as those that become writers late fail at once if
// another has written meanwhile. MySQL's binary log must not be in STATEMENT format.
type SQLOutbox struct {
	db         *sql.DB
	text       statements // of no namespace
	owner      owner
	others     others
	clock      clock
	alarm      limitedlog.Alarm
	unreadable atomic.Int64
	repaired   atomic.Int64
}

// NewSQLOutbox makes an SQLOutbox of db, which stays the caller's. It sends nothing: if the table
// is missing, the first use says so.
func NewSQLOutbox(db *sqlx.DB, dialect Dialect, options *SQLOutboxOptions) (*SQLOutbox, error) {
	var o SQLOutboxOptions
	if options != nil {
		o = *options
	}
	if db == nil {
		return nil, errors.New("consistency: NewSQLOutbox: db is nil")
	}
	if err := checkNamespace(o.Namespace); err != nil {
		return nil, err
	}
	text, err := newStatements(dialect, cmp.Or(o.Table, defaultTable))
	if err != nil {
		return nil, err
	}
	return &SQLOutbox{db: db.DB, text: text, owner: owner{namespace: o.Namespace, fixed: o.Namespace != ""}}, nil
}

// CreateTable makes the table where there is none, for tests and first steps. It does not change an
// existing table. In production, Schema's statements belong among your migrations.
func (s *SQLOutbox) CreateTable(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, s.text.schema())
	return s.failed("create the table", err)
}

// Unreadable is how many rows Claim has found that hold no key, and so are somebody else's: their
// items have a Key whose Check fails.
func (s *SQLOutbox) Unreadable() int64 { return s.unreadable.Load() }

// Put is Queue.Put. An ID is 32 hexadecimal digits.
func (s *SQLOutbox) Put(ctx context.Context, items ...Item) error {
	inserts, err := s.inserts(items, true)
	if err == nil && len(inserts) > 0 {
		err = s.session(ctx, func(conn *sql.Conn) error { return execute(ctx, conn, inserts) })
	}
	return s.failed("put", err)
}

// PutIn is Put in a transaction of the caller's, whose commit makes the items visible. After an
// error, roll the transaction back. One item costs one trip to the database, whatever the DSN says,
// and so do some hundreds. After counts from PutIn, not from the commit.
func (s *SQLOutbox) PutIn(ctx context.Context, tx sqlx.ExecerContext, items ...Item) error {
	return s.putIn(ctx, tx, items, true)
}

// putIn need not look for rows that are there already, if the IDs are new: that takes MariaDB a
// tenth of the INSERT's time.
func (s *SQLOutbox) putIn(ctx context.Context, tx sqlx.ExecerContext, items []Item, again bool) error {
	inserts, err := s.inserts(items, again)
	if err == nil && tx == nil {
		err = errors.New("the transaction is nil")
	}
	if err == nil {
		err = execute(ctx, tx, inserts)
	}
	return s.failed("put", err)
}

// insertItems and insertBytes bound one INSERT: a server refuses statements of some megabytes.
const (
	insertItems = 500
	insertBytes = 512 << 10
)

// inserts checks items, and makes the statements that put them.
func (s *SQLOutbox) inserts(items []Item, again bool) ([]string, error) {
	text, err := s.own()
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
			if again {
				b = text.endInsert(b)
			}
			all = append(all, string(b))
			first = n + 1
		}
	}
	return all, nil
}

// Depth counts 100,001 items of the outbox's namespace at most, those due first, so that it costs
// some milliseconds after an outage, too: 100,001 stands for more. Oldest is that of the oldest of
// them. Depth.Others is up to a minute old.
func (s *SQLOutbox) Depth(ctx context.Context) (Depth, error) {
	var d Depth
	text, err := s.own()
	if err == nil {
		err = s.reading(ctx, func(on asker) (err error) {
			var now int64
			began := time.Now()
			var latest int64
			if d, latest, now, err = readDepth(ctx, on, text); err == nil {
				s.clock.saw(now, latest, began, time.Now())
				d.Others, err = s.lookAtOthers(ctx, on)
			}
			return err
		})
	}
	return d, s.failed("depth", err)
}

// readDepth also returns when the latest of the items was put, and the time.
func readDepth(ctx context.Context, on asker, text statements) (d Depth, latest, now int64, err error) {
	var created int64
	var at sql.NullInt64
	err = on.QueryRowContext(ctx, text.depth()).Scan(&d.Items, &d.Due, &created, &latest, &at)
	if err == nil && !at.Valid {
		err = errors.New(sqlclock.Hint)
	}
	now = at.Int64
	if d.Items > 0 {
		d.Oldest = time.Duration(max(0, now-max(0, created))) * time.Microsecond
	}
	return d, latest, now, err
}

// Depths is Depth of each namespace that has items, whatever the outbox's own is, for programs that
// only look: of the first 100 namespaces, by name.
func (s *SQLOutbox) Depths(ctx context.Context) (map[string]Depth, error) {
	var all map[string]Depth
	err := s.reading(ctx, func(on asker) error {
		all = make(map[string]Depth)
		names, err := s.spaces(ctx, on)
		for _, name := range names {
			if err == nil {
				all[name], _, _, err = readDepth(ctx, on, s.text.in(name))
			}
		}
		return err
	})
	return all, s.failed("depth", err)
}

// failed says what has failed.
func (s *SQLOutbox) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("consistency: outbox: %s: %w", op, s.explain(err))
}
