// Package pglogical implements a canal.Source that reads the changes of a PostgreSQL database by
// logical replication: a publication, a replication slot, and the output plugin pgoutput. It uses
// pgx and pglogrepl for the protocol. It is a separate module, because of these dependencies.
//
//	source, err := pglogical.New(pglogical.Options{ConnString: "postgres://cacheaside@db/shop"})
//	if err != nil {
//		return err
//	}
//	checkpoint := canal.NewFileCheckpoint("position")
//	consumer, err := canal.NewConsumer(cache, source, checkpoint, []canal.Binding{
//		canal.Bind(users, "public", "users", canal.IntColumn[int64]("id")),
//	}, &canal.Options{Locker: locker})
//	if err != nil {
//		return err
//	}
//	return consumer.Run(ctx)
//
// The server is PostgreSQL 15 or later, with wal_level=logical. The user needs the attribute
// REPLICATION; it needs no access to the tables. The publication contains the bound tables and
// publishes all operations. As with CREATE SUBSCRIPTION, the publication must exist, and the
// Source creates the slot. A wrong setting is an error when the Source starts. The error names the
// setting and the statement that corrects it. That includes synchronous_standby_names with the
// application_name of the Source, and a slot with two_phase.
//
// The old row of an UPDATE or DELETE has the columns of the table's REPLICA IDENTITY: by default
// those of the primary key. If keys are made of other columns, the table needs REPLICA IDENTITY
// FULL, or USING INDEX with an index that contains them; otherwise Run returns an error. A large
// value (TOAST) that an UPDATE did not change is not sent: it is unknown, or that of the old row
// with FULL.
//
// The server keeps its log until the Consumer has saved its position: set max_slot_wal_keep_size,
// and watch canal.Stats.Retained. A slot that was removed, or that the server has invalidated, is a
// lost position. A Source removes an invalidated slot, and creates another one. On PostgreSQL 17
// and later it creates the slot with the property failover, so that standbys can copy it. When a
// standby was promoted, all bound tables are replaced, because commits that were read may be
// undone.
//
// A change is delivered when other sessions can see it. PostgreSQL sends a transaction before that:
// with synchronous replication, long before. If a cache deleted a row at that moment, a reader
// could load the old row again, and cache it. So the Source asks the server which transactions are
// visible, at most 200 times per second, and holds back the others.
//
// A new slot lacks transactions that committed while it was created, and a publication lacks what
// was written before a table was added to it. So when these transactions have ended, and other
// sessions can see their changes, all bound tables are replaced (event.Replace). A transaction that
// stays open or prepared delays only this replacement.
//
// Transactions are delivered when they are committed, also large ones and prepared ones. The server
// stores a large transaction on its disk until then, and the Source delivers it in parts. Changes
// that were rolled back never arrive.
//
// The log does not contain DDL. So the Source compares the catalog every second, and when it
// starts, with what it was before. Cached values can be stale until then. After ALTER TABLE all
// keys of the table's loaders are invalidated. If rows may have changed without a message, the
// table is replaced, and filters are repaired too (canal.Options.OnGap): if it was created,
// swapped, or rewritten (also by TRUNCATE, VACUUM FULL or SET LOGGED), or if its partitions or its
// entry in the publication were changed. After a change while no Source ran, all bound tables are
// replaced. A table that was changed and changed back counts as changed. DDL that changes neither
// the table nor its columns, such as CREATE INDEX or ALTER TYPE … RENAME VALUE, is not noticed.
//
// The log can also be the outbox of a consistency.Writer: see Outbox.
//
// Keys are made of integers, numeric, text, uuid, bool ("true", "false"), bytea, enums, and domains
// of these. The text of a value of another type, such as a date, float, json or array, depends on
// the driver of the program, so it is not exact (event.Value.Exact). If the key of a Binding needs
// such a value, each change invalidates its whole loader. The same applies to char(n) with trailing
// spaces.
package pglogical
