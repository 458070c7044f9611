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
// setting and the statement that corrects it.
//
// The old row of an UPDATE or DELETE has the columns of the table's REPLICA IDENTITY: by default
// those of the primary key. If keys are made of other columns, the table needs REPLICA IDENTITY
// FULL, or USING INDEX with an index that contains them; otherwise Run returns an error. A large
// value (TOAST) that an UPDATE did not change is not sent: it is unknown, or that of the old row
// with FULL.
//
// The server keeps its log until the Consumer has saved its position: set max_slot_wal_keep_size,
// and watch canal.Stats.Retained. A slot that was removed, or that the server has invalidated, is a
// lost position. A Source removes an invalidated slot, and creates another one.
//
// A change is delivered when other sessions can see it. PostgreSQL sends a transaction before that:
// with synchronous replication, long before. If a cache deleted a row at that moment, a reader
// could load the old row again, and cache it. So the Source asks the server which transactions are
// visible, at most 200 times per second, and holds back the others.
//
// Transactions are delivered when they are committed, also large ones and prepared ones. The server
// stores a large transaction on its disk until then, and the Source delivers it in parts. Changes
// that were rolled back never arrive.
//
// The log does not contain DDL. So the Source compares the catalog every second with what it was
// before: after DDL on a bound table, or a change of its partitions, all keys of its loaders are
// invalidated. If it has changed since the position was saved, all bound loaders are invalidated
// when the Source starts.
//
// Keys are made of integers, numeric, text, uuid, bool ("true", "false"), bytea, enums, and domains
// of these. Of other types, such as dates, floats, json and arrays, the text that a Go program has
// depends on the driver. It is not exact (event.Value.Exact): if the key of a Binding needs one,
// each change invalidates its whole loader. The same applies to char(n) with trailing spaces.
package pglogical
