package pglogical

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/logitem"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// OutboxOptions are the settings of an Outbox. nil and the zero value select the defaults.
type OutboxOptions struct {
	// Slot is the Options.Slot of the Source that reads the outbox. Default: "cacheaside".
	Slot string

	// Namespace separates the items of applications that share a database. It consists of letters,
	// digits, "_", "." and "-", at most 255 bytes. Give canal.BindOutbox the same one. Default: the
	// Options.Prefix of the Cache. Set it if applications with the same Prefix but different Redis
	// servers share a database.
	Namespace string
}

// An Outbox is an outbox without a table: a consistency.TxQueue that writes its items into the
// write-ahead log of the database, with pg_logical_emit_message. A canal.Consumer with a Source and
// canal.BindOutbox applies them. As with a table, an item exists if and only if the transaction is
// committed. But there is no row to insert, to delete and to vacuum.
//
// Set it as consistency.Options.Queue. It permits the levels Async, Outbox and Strict. Inline is
// an error, because it queues delayed items. The Consumer applies an item when it reads it,
// normally some milliseconds after the commit:
//
//   - Item.After and consistency.Options.AsyncDelay have no effect.
//   - A key that the Writer has invalidated after the commit is invalidated again, which can cost
//     one more load. This also removes the value that consistency.WriteThrough has stored.
//   - An item with Again or Reload is an error: leave consistency.Options.DoubleDelete and Reload
//     at zero. For replicas that lag, set cacheaside.Options.ReplicaLag.
//
// To a consistency.Relay the Outbox is always empty. So the Relay of the Writer does nothing, and
// consistency.Options.NoRelay saves its goroutines.
//
// While no Consumer runs, the items stay in the log, which the server keeps for the slot. Without
// the slot they would be lost. When a Consumer starts with another slot, it invalidates all loaders
// of its Cache, so no key stays stale then. But until then nothing is invalidated after a kill.
// So NewOutbox and Health return an error if the slot does not exist.
//
// A Consumer of a release that does not know groups (cacheaside.Key.Group) cannot read a message
// with a group. It parks the message, and invalidates all loaders of its Cache. So update the
// Consumers first.
//
// An Outbox is safe for concurrent use by any number of processes. It needs no Close. The user of
// the database needs no special rights.
type Outbox struct {
	db           *sqlx.DB
	database     string // its name
	slot, prefix string
}

var (
	_ consistency.TxQueue     = (*Outbox)(nil)
	_ consistency.QueueWaiter = (*Outbox)(nil)
)

// NewOutbox returns an Outbox in db, which must be the primary of the rows, with the driver
// github.com/jackc/pgx/v5/stdlib. cache is the Cache of the Writer. The caller closes both. options
// can be nil.
//
// NewOutbox calls Health, and returns its error. So the slot must exist before the first Writer
// starts. Start a Consumer, or execute these statements in a migration, as a user with the
// attribute REPLICATION. Create the publication first: a Consumer cannot read what the log contains
// from before, and its Run returns an error. Omit failover on PostgreSQL 16 and older.
//
//	CREATE PUBLICATION cacheaside
//	SELECT pg_create_logical_replication_slot('cacheaside', 'pgoutput', failover => true)
func NewOutbox(ctx context.Context, db *sqlx.DB, cache *cacheaside.Cache, options *OutboxOptions) (*Outbox, error) {
	var o OutboxOptions
	if options != nil {
		o = *options
	}
	o.Slot = cmp.Or(o.Slot, defaultSlot)
	switch {
	case db == nil || db.DB == nil:
		return nil, errors.New("pglogical: NewOutbox: db is nil")
	case cache == nil:
		return nil, errors.New("pglogical: NewOutbox: the cache is nil")
	case !slotName.MatchString(o.Slot):
		return nil, fmt.Errorf("pglogical: OutboxOptions.Slot %q: 1 to 63 lower-case letters, digits and '_'", o.Slot)
	}
	if kind := sqldb.KindOf(db); kind != "" && kind != sqldb.Postgres {
		return nil, fmt.Errorf("pglogical: NewOutbox: db is a %s database", kind)
	}
	o.Namespace = cmp.Or(o.Namespace, writeside.Of(cache).Prefix())
	if err := logitem.CheckNamespace(o.Namespace); err != nil {
		return nil, fmt.Errorf("pglogical: OutboxOptions.Namespace %w", err)
	}
	box := &Outbox{db: db, slot: o.Slot, prefix: logitem.Prefix(o.Namespace)}
	var err error
	if box.database, err = box.health(ctx); err != nil {
		return nil, failed("health", err)
	}
	return box, nil
}

// Health returns an error if items can be lost: if the slot does not exist, belongs to another
// database or output plugin, or has lost its log, or if wal_level is not logical. It costs one trip
// to the database. Use it in a health check. Whether a Consumer reads the slot is reported by
// canal.Consumer.Health.
func (o *Outbox) Health(ctx context.Context) error {
	_, err := o.health(ctx)
	return failed("health", err)
}

// health is Health. It returns the name of the database.
func (o *Outbox) health(ctx context.Context) (current string, err error) {
	var level, plugin, database, status, reason string
	var standby, exists bool
	var version int
	err = o.db.QueryRowContext(ctx, `SELECT current_setting('wal_level'), pg_is_in_recovery(), s.slot_name IS NOT NULL,
		coalesce(s.plugin::text, ''), coalesce(s.database::text, ''), current_database()::text,
		coalesce(s.wal_status, ''), coalesce(to_jsonb(s)->>'invalidation_reason', ''),
		current_setting('server_version_num')::int
		FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = $1`, o.slot).Scan(&level,
		&standby, &exists, &plugin, &database, &current, &status, &reason, &version)
	invalid := whyInvalid(status, reason)
	switch {
	case err != nil:
	case standby:
		err = errors.New("db is a standby: it must be the primary")
	case level != "logical":
		err = fmt.Errorf("wal_level is %s, so that the outbox cannot be read: it must be logical (ALTER SYSTEM SET "+
			"wal_level = logical, and restart the server)", level)
	case !exists:
		err = fmt.Errorf("the slot %s does not exist, so that items are lost: start the Consumer, or, after CREATE "+
			"PUBLICATION, %s", o.slot, createSlot(o.slot, version))
	case plugin != "pgoutput" || database != current:
		err = fmt.Errorf("the slot %s has the plugin %q and belongs to the database %q, not to %q: set "+
			"OutboxOptions.Slot to the Options.Slot of the Source", o.slot, plugin, database, current)
	case invalid != "":
		err = fmt.Errorf("the slot %s is invalid, so that items are lost: %s: start the Consumer, which creates the "+
			"slot again and invalidates everything", o.slot, invalid)
	}
	return current, err
}

// createSlot returns the query that creates a slot. See createStatement.
func createSlot(name string, version int) string {
	failover := ""
	if version >= failoverVersion {
		failover = ", failover => true"
	}
	return "SELECT pg_create_logical_replication_slot('" + name + "', 'pgoutput'" + failover + ")"
}

// PutIn writes items into the log in the transaction tx of the caller. It costs one trip to the
// database, and one more when the driver first prepares the statement on a connection. The keys are
// parameters of the statement, so its text does not contain them. PutIn ignores Item.ID and
// Item.After. It returns an error if tx is in another database than the Outbox. It compares only
// the name, so it does not notice a database of the same name on another server. After an error,
// roll the transaction back.
func (o *Outbox) PutIn(ctx context.Context, tx sqlx.ExecerContext, items ...consistency.Item) error {
	if tx == nil {
		return failed("put", errors.New("the transaction is nil"))
	}
	messages, err := encode(items)
	if err != nil || len(messages) == 0 {
		return failed("put", err)
	}
	statement, arguments := o.statement(messages)
	result, err := tx.ExecContext(ctx, statement, arguments...)
	if err != nil {
		return failed("put", err)
	}
	written, err := result.RowsAffected()
	if err == nil && written == 0 {
		err = fmt.Errorf("the transaction is not in the database %q of the Outbox: create the Writer and the Outbox "+
			"with the same db", o.database)
	}
	return failed("put", err)
}

// Put writes items into the log in a transaction of its own. An item with After is an error: the
// log cannot delay it.
func (o *Outbox) Put(ctx context.Context, items ...consistency.Item) error {
	for i := range items {
		if items[i].After > 0 {
			return failed("put", fmt.Errorf("%v: Item.After %v: the log cannot delay an item", items[i].Key,
				items[i].After))
		}
	}
	return o.PutIn(ctx, o.db, items...)
}

// encode returns the messages with items.
func encode(items []consistency.Item) ([][]byte, error) {
	encoded := make([]logitem.Item, len(items))
	for i, item := range items {
		switch err := logitem.Check(item.Key); {
		case err != nil:
			return nil, err
		case item.Again > 0:
			return nil, fmt.Errorf("%v: Item.Again %v: the log cannot repeat an item: do not set Options.DoubleDelete",
				item.Key, item.Again)
		case item.Reload:
			return nil, fmt.Errorf("%v: Item.Reload: a Consumer does not reload keys: do not set Options.Reload",
				item.Key)
		}
		encoded[i] = logitem.Item{Key: item.Key, Inserting: item.Inserting}
	}
	return logitem.Encode(encoded), nil
}

// statement returns the statement that writes messages. In another database it writes nothing, and
// returns no row. Its arguments are of types that any driver takes.
func (o *Outbox) statement(messages [][]byte) (text string, arguments []any) {
	calls, arguments := make([]string, len(messages)), []any{o.database, o.prefix}
	for i, message := range messages {
		arguments = append(arguments, message)
		calls[i] = fmt.Sprintf("pg_catalog.pg_logical_emit_message(true, $2::text, $%d::bytea)", len(arguments))
	}
	return "SELECT " + strings.Join(calls, ", ") + " WHERE pg_catalog.current_database() = $1::text", arguments
}

// Claim returns no items: a Consumer applies them.
func (o *Outbox) Claim(context.Context, int, time.Duration) ([]consistency.Item, error) {
	return nil, nil
}

// Done does nothing: a Consumer applies the items again, which does no harm.
func (o *Outbox) Done(context.Context, ...consistency.Item) error { return nil }

// Later returns an error if there are items, because Claim has returned none.
func (o *Outbox) Later(_ context.Context, items ...consistency.Item) error {
	if len(items) == 0 {
		return nil
	}
	return failed("later", errors.New("the log cannot delay an item"))
}

// Depth returns zero. The items that wait are in the log: see canal.Stats.Lag and
// canal.Stats.Retained.
func (o *Outbox) Depth(context.Context) (consistency.Depth, error) { return consistency.Depth{}, nil }

// Immediate makes a Writer refuse the level Inline, whose items need a delay.
func (o *Outbox) Immediate() {}

// Wait returns when ctx ends.
func (o *Outbox) Wait(ctx context.Context) { <-ctx.Done() }

// failed wraps err with the operation.
func failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return wording.Errorf("pglogical: outbox: %s: %w", op, err)
}
