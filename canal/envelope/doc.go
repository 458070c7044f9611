// Package envelope reads the messages in which others tell of the changes of rows, where one of
// them runs already and publishes into a broker: canal (https://github.com/alibaba/canal),
// Maxwell's daemon (https://maxwells-daemon.io) and Debezium's connectors for MySQL and MariaDB
// (https://debezium.io). NewSource makes a canal.Source of a channel of such messages; package
// watermillsource, of topics of Watermill.
//
//	source := envelope.NewSource(messages, envelope.Canal)
//	consumer, err := canal.NewConsumer(cache, source, nil, bindings, &canal.Options{
//		Parking: parking.NewFile("parked.jsonl"),
//	})
//
// # The broker's part
//
// The broker keeps the position, by what is acknowledged, so the Consumer has no checkpoint (nil),
// and no Options.Locker: have all processes share a consumer group, or a durable subscription, and
// the broker divides the work. Messages must be kept until they are acknowledged. They may come
// again: that does no harm.
//
// To invalidate needs no order. Handlers, and filters, want the changes of a row in their order:
// the broker must keep that of a partition, hand out the next of it when the one before is
// acknowledged, and have all changes of a row in one. A change of the primary key concerns two
// rows, and so it may concern two partitions.
//
// Nobody tells of messages that a broker has lost, or of changes before its group was there:
// without a checkpoint Options.OnGap is not called then. Invalidate the loaders
// (Loader.InvalidateAll), and rebuild the filters, when a group is new, or its position was set by
// hand.
//
// # What is not known
//
// A value that a message does not have, or has in a way that can't be read, is not known: a Binding
// that needs it takes the change for not understood, and all keys of the loader are invalidated. So
// it is with the row as it was, where the message does not show surely what it was. All of that is
// alerted, as "not understood": where it is often, a setting is wrong. A message that can't be read
// at all is parked, and acknowledged. If it names its table, it is a canal.Replace of that table:
// all that is bound to the table is invalidated, and filters are made anew (Options.OnGap). Else
// all that is bound to anything is invalidated.
//
// The effect of DDL is read from its text, which all three have in their messages, as from the
// binlog: a table that another was renamed to, or exchanged for, is a canal.Replace, and so are all
// tables after a statement that is not understood, and after a message of DDL without its text.
// Where a statement names a schema for some of its tables and not for others, these may be of any
// schema.
//
// A value whose text may not be the client's is not exact (event.Value.Exact), and no key is made
// of it: FLOAT and DOUBLE, JSON, numbers that are ZEROFILL, bytes in hex or base64 where the
// message has the column's type, and times whose fraction digits are guessed. IntColumn compares
// numbers. MariaDB's system-versioned tables come with their history, as inserts: no message tells
// it from the rows that the table has now.
//
// All three need binlog_format=ROW and binlog_row_image=FULL. With MINIMAL, or NOBLOB, an update of
// several columns of which one is the primary key reads as if the others had been before as they
// are after.
//
// # canal
//
// Set canal.mq.flatMessage=true. To keep the order of a row's changes, one partition, or
// canal.mq.partitionHash by the primary key ("shop.users:$pk$"). DDL goes to the first partition.
// canal.instance.filter.query.ddl must be false, as it is by default, or nobody tells of TRUNCATE
// and ALTER.
//
// A flat message has in old what was changed, by the place of the row in data
// (https://github.com/alibaba/canal/issues/4352); versions that leave out what is empty give less
// of them (https://github.com/alibaba/canal/pull/5021): then what the rows of the message were is
// not known. Nor is it where old has nothing, as when only columns were changed that
// canal.instance.filter.black.field leaves out. BLOB, BINARY, ENUM and SET are read by mysqlType;
// TIMESTAMP is in the time zone of canal's JVM: have it run in UTC.
//
// # Maxwell
//
// Set output_ddl=true, or nobody tells of DROP and ALTER. Nobody tells of TRUNCATE and REPAIR in
// any case (SchemaChange.java of zendesk/maxwell): after one, invalidate by yourself.
// producer_partition_by=primary_key, or table, keeps the order of a row's changes. Leave
// output_null at true: without it a NULL is not known. encrypt must be none, and
// output_naming_strategy none.
//
// Messages do not have the columns' types: BLOB and BINARY are base64, which nothing tells from a
// text, and stay so; JSON is nested, and is given without blanks; an array of texts is taken for a
// SET; floats have Java's digits. A number with a fraction is not exact, as it may be FLOAT,
// nor is an array. Integers are taken as they come, though they may be ZEROFILL, and a YEAR of 0 is
// "0": use IntColumn. TIMESTAMP is in the time zone of Maxwell's JVM: have it run in
// UTC. A bootstrap's rows are canal.Read.
//
// # Debezium
//
// Use JsonConverter for values, with schemas.enable=true, and without the transformation
// ExtractNewRecordState, which leaves out what a row was. Each table has a topic of its own, and
// DDL that of topic.prefix (include.schema.changes=true, the default). Set:
//
//   - skipped.operations=none, for by default nobody tells of TRUNCATE;
//   - bigint.unsigned.handling.mode=precise, if numbers above 2^63 occur;
//   - column.propagate.source.type=.*, for the fraction digits of DATETIME and TIMESTAMP: without
//     it .120 and .12, and .000 and none, are the same, and such columns are no keys. Without it
//     ZEROFILL, and BINARY in hex or base64, cannot be recognised;
//   - snapshot.mode=no_data: the rows of a snapshot (canal.Read) would all be invalidated, one by
//     one;
//   - and leave decimal.handling.mode at precise (or string), binary.handling.mode at bytes, and
//     time.precision.mode as it is by default.
//
// A column that is masked, truncated or converted (column.mask, converters) is as the message has
// it. DATE and DATETIME of only zeros are NULL or 1970-01-01. Without a schema numbers and texts
// are given as they come: DATE as days, DATETIME as milliseconds or microseconds, DECIMAL and bytes
// in base64. Tombstones, heartbeats and the bounds of transactions change nothing.
package envelope
