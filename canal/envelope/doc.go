// Package envelope reads messages with row changes from change data capture programs that publish
// to a broker: canal (https://github.com/alibaba/canal), Maxwell's daemon
// (https://maxwells-daemon.io), and Debezium's connectors for MySQL, MariaDB and PostgreSQL
// (https://debezium.io). NewSource returns a canal.Source that reads a channel of such messages.
// The module watermillsource reads them from Watermill topics.
//
//	source := envelope.NewSource(messages, envelope.Canal)
//	consumer, err := canal.NewConsumer(cache, source, nil, bindings, &canal.Options{
//		Parking: parking.NewFile("parked.jsonl"),
//	})
//
// # The broker's part
//
// The broker keeps the position through acknowledgements. The Consumer therefore has no
// checkpoint (nil) and no Options.Locker. All processes share a consumer group, or a durable
// subscription, and the broker divides the work among them. The broker must keep a message until
// it is acknowledged. It may deliver a message more than once, which does no harm.
//
// Invalidations need no order. Handlers and filters need the changes of a row in order. For this,
// all changes of a row must be in one partition, and the broker must keep the order of a
// partition and deliver its next message only after the previous one is acknowledged. A change of
// the primary key concerns two rows, so it may concern two partitions.
//
// The Consumer does not notice messages that the broker has lost, or changes made before its
// group existed. Options.OnGap is not called for these, because there is no checkpoint.
// Invalidate the loaders (Loader.InvalidateAll) and rebuild the filters when a group is new, or
// when its position was set by hand.
//
// # Unknown values
//
// A value is unknown if the message does not contain it, or contains it in a form that cannot be
// read. The row before the change is unknown if the message does not show it with certainty. If a
// Binding needs an unknown value, it does not understand the change, and all keys of its loader
// are invalidated. An alert ("not understood") reports this. If it happens often, a setting is
// wrong.
//
// A message that cannot be read at all is parked and acknowledged. If it names its table, it
// becomes a Replace of that table: everything bound to the table is invalidated, and filters are
// rebuilt (Options.OnGap). Otherwise everything that is bound is invalidated.
//
// The effect of DDL is read from its text, which all three programs send. A table that replaces
// another, through a rename or an exchange, is a Replace. After a statement that is not
// understood, and after a DDL message whose text is missing or cannot be read, all tables are a
// Replace. If a statement names a schema for some tables only, the other tables may belong to any
// schema.
//
// A value is not exact (event.Value.Exact) if the client may show another text, and then no key
// is made of it. This applies to FLOAT and DOUBLE, to JSON, to numbers with ZEROFILL, to bytes in
// hex or base64 if the message has the column's type, and to times whose number of fraction
// digits is guessed. IntColumn compares numbers, and is not affected. MariaDB's system-versioned
// tables are sent with their history, as inserts, which cannot be distinguished from the current
// rows.
//
// Of MySQL and MariaDB, all three programs need binlog_format=ROW and binlog_row_image=FULL. With
// MINIMAL or NOBLOB, an update of several columns, one of which is the primary key, looks as if the
// other columns had not changed.
//
// # canal
//
// Set canal.mq.flatMessage=true. To keep the changes of a row in order, use one partition, or
// canal.mq.partitionHash by the primary key ("shop.users:$pk$"). DDL is sent to the first
// partition. canal.instance.filter.query.ddl must be false, which is the default. Otherwise canal
// does not send TRUNCATE and ALTER.
//
// In a flat message, old contains the changed columns, in the same order as the rows in data
// (https://github.com/alibaba/canal/issues/4352). Versions that omit empty entries send fewer
// entries than rows (https://github.com/alibaba/canal/pull/5021). Then the rows before the change
// are unknown. The same applies if old is empty, for example because only columns were changed
// that canal.instance.filter.black.field excludes. BLOB, BINARY, ENUM and SET are read according
// to mysqlType. TIMESTAMP is in the time zone of canal's JVM: run it in UTC.
//
// # Maxwell
//
// Set output_ddl=true. Otherwise Maxwell does not send DROP and ALTER. It never sends TRUNCATE
// and REPAIR (SchemaChange.java of zendesk/maxwell): invalidate the loaders yourself after these
// statements. producer_partition_by=primary_key, or table, keeps the changes of a row in order.
// Keep output_null=true, the default: without it, a NULL is unknown. encrypt and
// output_naming_strategy must be none.
//
// Messages do not contain the types of columns. BLOB and BINARY are base64, which cannot be
// distinguished from text, and are delivered as base64. JSON is nested, and is delivered without
// blanks. An array of texts is treated as a SET. Floats have Java's digits. A number with a
// fraction is not exact, because it may be a FLOAT; neither is an array. Integers are delivered
// unchanged, although they may have ZEROFILL, and a YEAR of 0 is "0": use IntColumn. TIMESTAMP is
// in the time zone of Maxwell's JVM: run it in UTC. The rows of a bootstrap have the kind
// event.Read.
//
// # Debezium
//
// Use JsonConverter for values with schemas.enable=true. Do not use the transformation
// ExtractNewRecordState, which removes the row before the change. Each table has its own topic,
// and DDL is sent to the topic of topic.prefix (include.schema.changes=true, the default). Set:
//
//   - skipped.operations=none, because Debezium does not send TRUNCATE by default;
//   - bigint.unsigned.handling.mode=precise, if there are numbers above 2^63;
//   - column.propagate.source.type=.*, for the number of fraction digits of DATETIME and
//     TIMESTAMP. Without it, .120 and .12 look the same, as do .000 and no fraction, and such
//     columns cannot be keys. ZEROFILL, and BINARY in hex or base64, cannot be recognised without
//     it either;
//   - snapshot.mode=no_data, because otherwise all rows of a snapshot (event.Read) are
//     invalidated one by one;
//   - and keep decimal.handling.mode at precise (or string), binary.handling.mode at bytes, and
//     time.precision.mode at its default.
//
// A column that is masked, truncated or converted (column.mask, converters) has the value of the
// message. DATE and DATETIME with only zeros are NULL or 1970-01-01. Without a schema, numbers
// and texts are delivered unchanged: DATE as days, DATETIME as milliseconds or microseconds,
// DECIMAL and bytes in base64. Tombstones, heartbeats, and the begin and end of transactions
// change nothing.
//
// JsonConverter sends the default of a nullable column instead of NULL. A value that equals this
// default is therefore not exact. A message does not say whether the converter does this
// (replace.null.with.default).
//
// # Debezium with PostgreSQL
//
// Use DebeziumPostgres. A Binding names the schema and the table, such as "public" and "users", as
// with package pglogical; the name of the database does not matter. The settings above apply, and
// column.propagate.source.type=.* is needed by all keys except integers, UUIDs and enums: without
// it, a text may be an inet, and a number a MONEY. The same types can be keys as with package
// pglogical, with the same texts. Domains cannot, except of the three types above. Arrays, hstore
// maps, BIT(n) and geometric types are unknown. NaN needs decimal.handling.mode=string.
//
// The row before a change has the columns of the table's REPLICA IDENTITY only. Debezium sends
// NULL or a made-up value, such as 0 or "", for the others, and does not say which these are.
// Therefore DebeziumPostgres is given the identities. The columns of all keys must be in the
// identity of their table, as with package pglogical, which checks it. If a listed column is not in
// the identity, caches are stale. This statement shows the identity of a table: d means DEFAULT,
// and f means FULL.
//
//	SELECT relreplident FROM pg_class WHERE oid = 'public.users'::regclass
//
// To add a column to an identity, change the table, wait until all older messages are read, and
// change the list. To remove one, change the list of all consumers first.
//
// With REPLICA IDENTITY NOTHING, or DEFAULT without a primary key, PostgreSQL refuses UPDATE and
// DELETE of a published table.
//
// A large value (TOAST) that an UPDATE did not change is not sent. Debezium sends
// "__debezium_unavailable_value" instead, or its bytes. Such a value is unknown, unless the row
// before the change has it. Another placeholder (unavailable.value.placeholder) is only recognised
// if the schema declares it, as Debezium does in the parameter
// __debezium.unavailable.value.placeholder; otherwise keep the default.
//
// Debezium does not send the DDL of PostgreSQL: invalidate the loaders yourself after ALTER TABLE,
// or when a table was swapped. TRUNCATE needs skipped.operations=none. Changes of partitions have
// the names of the partitions, unless the publication has publish_via_partition_root. Messages of
// pg_logical_emit_message change nothing. Debezium may publish a change before other sessions see
// it, in particular with synchronous replication; a reader can then cache the old row. Package
// pglogical waits for that, checks the identities, and notices DDL.
package envelope
