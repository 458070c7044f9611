// Package canal keeps caches and filters consistent with a database that other programs change
// too: another service, a migration, an operator's UPDATE. A Source delivers changes of rows. A
// Consumer invalidates their keys (Bind) or their groups (BindGroup), updates filters (BindFilter),
// and calls functions with the changes (Handle).
//
// BindOutbox applies what a consistency.Writer has put into the log of PostgreSQL.
//
// Each change is processed at least once. The changes of a row are processed in order. The
// Consumer first invalidates caches, then calls handlers, and then saves the position
// (Checkpoint). A process that was killed therefore repeats the changes that were in progress. If
// the Source loses its position, it cannot deliver the changes that it missed. The Consumer then
// invalidates everything that is bound.
//
// Sources are in other packages. The module mysqlbinlog reads the binary log of MariaDB and MySQL.
// The module pglogical reads the logical replication of PostgreSQL. Package envelope reads the
// messages of canal, Maxwell and Debezium from a channel, and the module watermillsource reads them
// from a broker. Your own Source is a type with one method.
//
// Package event defines the changes that Sources deliver and handlers receive. Package parking
// stores changes that could not be processed.
package canal
