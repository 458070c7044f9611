// Package mysqlbinlog implements a canal.Source that reads the binary log of MariaDB or MySQL as
// a replica does. It uses go-mysql for the protocol. It is a separate module, because go-mysql
// depends on about fifteen other modules.
//
// The server needs log_bin, binlog_format=ROW and binlog_row_metadata=FULL (MariaDB 10.5, MySQL
// 8.0.1). MySQL also needs gtid_mode=ON. The user needs REPLICATION SLAVE. It also needs SELECT
// on tables whose keys are UUID, INET4 or BINARY, or are unsigned numbers or MariaDB's YEAR read
// as text, because the log does not distinguish these types, and contains neither ZEROFILL nor
// the width of a YEAR. With SELECT on all
// bound tables, the Source also reports missing tables and recognises system-versioned tables. A
// wrong setting is an error when the Source starts. The error names the variable and its value.
//
// A change is delivered when other sessions can see it. Servers write a transaction to the log,
// and send it to replicas, before they commit it. If a cache deleted a row at that moment, a
// reader could load the old row again, and cache it. So the Source asks the server which
// transactions are visible, at most 200 times per second, and holds back the others.
//
// The log does not contain:
//
//   - rows that InnoDB changes because of ON DELETE CASCADE, ON DELETE SET NULL or ON UPDATE
//     CASCADE. Also bind the referenced table. A warning names the constraint if the user can see
//     it. MySQL 9.7 logs these rows, unless innodb_native_foreign_keys is ON.
//   - changes with sql_log_bin=0, or filtered by binlog_do_db and binlog_ignore_db.
//   - on a replica with log_slave_updates=OFF, the replicated changes.
//
// A server whose innodb_flush_log_at_trx_commit or sync_binlog is not 1 can lose committed
// transactions when its machine fails. It does not report this.
//
// The log contains FLOAT, DOUBLE, MySQL's JSON and MariaDB's INET6 in another form than the
// client shows, and numbers with ZEROFILL without their leading zeros. Such values are not exact
// (event.Value.Exact). If the key of a Binding needs one, each change invalidates its whole
// loader.
//
// For MariaDB's system-versioned tables, the Source delivers the current rows, not their history.
// If the user cannot see the table, the Source cannot distinguish them and delivers the history
// as inserts. A table that is versioned by transactions is logged as statements. Each of these is
// a Replace of all tables, even if the table is not bound. LOAD DATA into such a table, and
// statements that change several tables, are not logged at all. A warning at the start names the
// tables of this kind that the user can see.
//
// The tests run on MariaDB 10.11 and MySQL 9.7.
package mysqlbinlog
