// Package canal makes caches and filters follow the database, no matter what changed it:
// another program, a migration, an operator's UPDATE. A Source tells of the changes of rows. A
// Consumer invalidates their keys (Bind), tells filters (BindFilter), and passes the changes to
// functions (Handle).
//
// A change is done at least once, those of a row in their order: first caches are invalidated, then
// handlers get the change, then the position is saved (Checkpoint), so that a process that is
// killed at any moment does again what it may not have done. Changes that nobody has told of,
// because the Source had lost its position, are made good by invalidating everything that is bound.
//
// Sources are elsewhere: mysqlbinlog, a module of its own, reads the binary log of MariaDB and
// MySQL; package envelope reads what canal, Maxwell and Debezium publish, from a channel, and
// watermillsource, a module of its own, from a broker. One of your own is a type with a single
// method.
//
// Package event has what Sources tell and handlers get, package parking keeps what could not be
// done.
package canal
