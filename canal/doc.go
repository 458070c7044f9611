// Package canal has caches and filters follow the database, whoever has changed it: another program, a migration, an operator's UPDATE. A Source tells of the changes of rows: MySQL's or MariaDB's binary log (package mysqlbinlog, a module of its own), or the
// messages of canal server, Maxwell or Debezium (package envelope). A Consumer invalidates what they stand for.
package canal
