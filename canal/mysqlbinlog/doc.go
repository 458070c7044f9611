// Package mysqlbinlog is a canal.Source that reads the binary log of MariaDB or MySQL as a replica
// does, over the protocol implementation of go-mysql. It is a module of its own, since that brings
// some fifteen others.
//
// The server needs log_bin, binlog_format=ROW and binlog_row_metadata=FULL, which MariaDB has since
// 10.5 and MySQL since 8.0.1; MySQL needs gtid_mode=ON, too. The user needs REPLICATION SLAVE, and
// SELECT on the tables whose keys are of the types UUID, INET4 or BINARY, or are unsigned numbers
// that are read as text: the log does not tell these from each other, and does not have ZEROFILL.
// With SELECT on all tables that are bound, the Source also reports those that are missing, and
// recognises system-versioned tables. A variable that is set otherwise is an error when it starts,
// which names the variable and its value.
//
// A change is told when other sessions can see it. Servers write a transaction into the log, and
// send it to replicas, before they commit it: a cache that forgets a row at once may read the old
// one once more, and keep it. So the Source asks the server which transactions can be seen, at most
// two hundred times a second, and holds the others back.
//
// The log does not tell of rows that InnoDB changes by ON DELETE CASCADE, ON DELETE SET NULL or
// ON UPDATE CASCADE (bind the table that is referred to, too; a warning is logged where the user
// may see the constraint; MySQL 9.7 logs these rows, unless innodb_native_foreign_keys is ON); what
// is written with sql_log_bin=0, or filtered by binlog_do_db and binlog_ignore_db; on a replica
// with log_slave_updates=OFF, what it has replicated. And a server that loses what it has
// committed, because innodb_flush_log_at_trx_commit or sync_binlog is not 1 and its machine has
// failed, loses it without a word.
//
// FLOAT, DOUBLE, MySQL's JSON and MariaDB's INET6 stand in the log otherwise than the client shows
// them, and so do numbers that are ZEROFILL, whose zeros the log does not have. Such values are not
// exact (event.Value.Exact): a Binding whose key needs one invalidates its whole loader with each
// change.
//
// Of MariaDB's system-versioned tables the Source tells the rows that they have now, not their
// history. If the user may not see the table it cannot tell them apart: history comes as inserts. A
// table that is versioned by transactions is logged as statements, each of which is a Replace of
// all tables; what LOAD DATA does to it, and statements that change several tables, is not logged
// at all.
//
// The tests run on MariaDB 10.11 and MySQL 9.7.
package mysqlbinlog
