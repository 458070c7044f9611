package ddl

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// a, p and z are Changes as the tests write them: a table was altered, replaced or emptied.
func a(name string) event.Change { return of(event.Alter, name) }
func p(name string) event.Change { return of(event.Replace, name) }
func z(name string) event.Change { return of(event.Truncate, name) }

func of(k event.Kind, name string) event.Change {
	schema, table, ok := strings.Cut(name, ".")
	if !ok {
		schema, table = "shop", name
	}
	return event.Change{Kind: k, Schema: schema, Table: table}
}

// same compares what a statement can say of a change.
func (e *Effect) same(other *Effect) bool {
	return e.Control == other.Control && e.XID == other.XID && e.Unknown == other.Unknown &&
		slices.EqualFunc(e.Changes, other.Changes, func(a, b event.Change) bool {
			return a.Kind == b.Kind && a.Schema == b.Schema && a.Table == b.Table
		})
}

func changes(c ...event.Change) Effect { return Effect{Changes: c} }
func control(c Control) Effect         { return Effect{Control: c} }
func xa(c Control, xid string) Effect  { return Effect{Control: c, XID: xid} }

var none = Effect{}

type reading struct {
	statement string
	want      Effect
}

// Statements that have keywords in upper case and names in lower case, by the page that documents
// them. All are read with the schema shop.
var regular = map[string][]reading{
	"https://dev.mysql.com/doc/refman/8.4/en/commit.html": {
		{"BEGIN", control(Begin)},
		{"BEGIN WORK;", control(Begin)},
		{"START TRANSACTION", control(Begin)},
		{"START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", control(Begin)},
		{"COMMIT", control(Commit)},
		{"COMMIT WORK AND NO CHAIN NO RELEASE", control(Commit)},
		{"ROLLBACK", control(Rollback)},
		{"ROLLBACK WORK", control(Rollback)},
		{"START REPLICA", unknown()},
		{"START", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/savepoint.html": {
		{"SAVEPOINT s", none},
		{"ROLLBACK TO s", none},
		{"ROLLBACK TO SAVEPOINT s", none},
		{"ROLLBACK WORK TO SAVEPOINT s", none},
		{"RELEASE SAVEPOINT s", none},
	},
	"https://mariadb.com/docs/server/reference/sql-statements/programmatic-compound-statements/begin-end": {
		{"BEGIN NOT ATOMIC DELETE FROM users; END", unknown()},
		{"BEGIN NOT ATOMIC END", unknown()},
		{"BEGIN END", unknown()},
		{"IF 1 THEN DELETE FROM users; END IF", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/xa-statements.html": {
		{"XA START 'x1'", xa(XA, "'x1'")},
		{"XA START X'7831',X'',1", xa(XA, "X'7831',X'',1")},
		{"XA BEGIN 'x1' JOIN", xa(XA, "'x1'")},
		{`XA END "x1" SUSPEND FOR MIGRATE`, xa(XA, "'x1'")},
		{"XA END X'7831',X'',1", xa(XA, "X'7831',X'',1")},
		{"XA PREPARE 0x7831, 'b', 7", xa(XA, "0x7831,'b',7")},
		{"XA COMMIT X'7831', X'' , 1", xa(XACommit, "X'7831',X'',1")},
		{"XA COMMIT 'x1','',010 ONE PHASE", xa(XACommit, "'x1','',010")},
		{"XA ROLLBACK B'0111100000110001',X'aB',0x1f", xa(XARollback, "B'0111100000110001',X'aB',0x1f")},
		{"XA ROLLBACK 0b111100000110001", xa(XARollback, "0b111100000110001")},
		{`XA ROLLBACK 'it''s \0\n\%\\'`, xa(XARollback, `'it''s \0\n\%\\'`)},
		{`XA ROLLBACK "say ""x"""`, xa(XARollback, `'say ""x""'`)},
		{"XA RECOVER", none},
		{"XA RECOVER CONVERT XID", none},
		{"XA", unknown()},
		{"XA COMMIT", unknown()},
		{"XA COMMIT 'x';XA COMMIT 'y'", unknown()},
		{"XA COMMIT '" + strings.Repeat("x", maxXID) + "'", unknown()},
		{"XA COMMIT X'" + strings.Repeat("78", 64) + "',X'" + strings.Repeat("78", 64) + "',4294967295", xa(XACommit, "X'"+strings.Repeat("78", 64)+"',X'"+strings.Repeat("78", 64)+"',4294967295")},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/create-table.html": {
		{"CREATE TABLE users (id INT PRIMARY KEY)", changes(a("users"))},
		{"CREATE TABLE IF NOT EXISTS crm.users (id INT)", changes(a("crm.users"))},
		{"CREATE TABLE users LIKE old", changes(a("users"))},
		{"CREATE TABLE users (LIKE old)", changes(a("users"))},
		{"CREATE TABLE users (id INT) START TRANSACTION", changes(a("users"))}, // its rows follow, since MySQL 8.0.21
		{"CREATE TABLE users (id INT COMMENT 'a;b', at TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)) ENGINE=InnoDB COMMENT='SELECT' PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10))", changes(a("users"))},
		{"CREATE TABLE users SELECT * FROM old", changes(p("users"))}, // it is logged like that only where its rows are not
		{"CREATE TABLE users (id INT) IGNORE AS SELECT 1 AS id", changes(p("users"))},
		{"CREATE TABLE users (SELECT 1)", changes(p("users"))},
		{"CREATE TABLE users TABLE old", changes(p("users"))},
		{"CREATE TABLE users VALUES ROW(1)", changes(p("users"))},
		{"CREATE TEMPORARY TABLE users (id INT)", none},
		{"CREATE TABLE", unknown()},
		{"CREATE TABLE (id INT)", unknown()},
		{"CREATE TABLE a.b.c (id INT)", unknown()},
		{"CREATE TABLE users (id INT", unknown()},
		{"CREATE TABLE users (id INT))", unknown()},
		{"CREATE", unknown()},
		{"CREATE THING t", unknown()},
	},
	"https://mariadb.com/docs/server/reference/sql-statements/data-definition/create/create-table": {
		{"CREATE OR REPLACE TABLE users (id INT)", changes(a("users"))},
		{"CREATE OR REPLACE TEMPORARY TABLE users (id INT)", none},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/sql-data-definition-statements.html": {
		{"CREATE DATABASE d", none},
		{"CREATE SCHEMA IF NOT EXISTS d DEFAULT CHARACTER SET = utf8mb4", none},
		{"CREATE INDEX i ON users (name)", none},
		{"CREATE UNIQUE INDEX i USING BTREE ON users (name(10))", none},
		{"CREATE FULLTEXT INDEX i ON users (name)", none},
		{"CREATE SPATIAL INDEX i ON users (g)", none},
		{"CREATE VECTOR INDEX i ON users (v)", none},
		{"CREATE SPATIAL REFERENCE SYSTEM IF NOT EXISTS 4120 NAME 'Greek'", none},
		{"CREATE VIEW v AS SELECT * FROM users", none},
		{"CREATE OR REPLACE ALGORITHM = MERGE DEFINER = 'a'@'%' SQL SECURITY INVOKER VIEW v AS SELECT 1", none},
		{"CREATE ALGORITHM=UNDEFINED DEFINER=`root`@`localhost` SQL SECURITY DEFINER VIEW v AS SELECT 1", none},
		{"CREATE DEFINER=root@db.example.com PROCEDURE f() BEGIN DELETE FROM users; END", none},
		{"CREATE DEFINER=CURRENT_USER() FUNCTION f() RETURNS INT BEGIN DELETE FROM users; RETURN 1; END", none},
		{"CREATE AGGREGATE FUNCTION f RETURNS INT SONAME 'f.so'", none},
		{"CREATE DEFINER=CURRENT_ROLE TRIGGER g BEFORE INSERT ON users FOR EACH ROW BEGIN SET x = 1; DELETE FROM users; END", none},
		{"CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO BEGIN DELETE FROM users; END", none},
		{"CREATE JSON RELATIONAL DUALITY VIEW v AS SELECT 1", none},
		{"CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'h')", none},
		{"CREATE LOGFILE GROUP l ADD UNDOFILE 'u'", none},
		{"CREATE UNDO TABLESPACE u ADD DATAFILE 'u.ibu'", none},
		{"CREATE RESOURCE GROUP g TYPE = USER", none},
		{"CREATE USER u IDENTIFIED BY 'p'", none},
		{"CREATE ROLE r", none},
		{"ALTER DATABASE d CHARACTER SET utf8mb4", none},
		{"ALTER SCHEMA CHARACTER SET utf8mb4", none},
		{"ALTER DEFINER=u@`%` EVENT e DO BEGIN DELETE FROM users; END", none},
		{"ALTER ALGORITHM=MERGE VIEW v AS SELECT 1", none},
		{"ALTER FUNCTION f COMMENT 'x'", none},
		{"ALTER PROCEDURE f SQL SECURITY INVOKER", none},
		{"ALTER SERVER s OPTIONS (HOST 'h')", none},
		{"ALTER USER u ACCOUNT LOCK", none},
		{"ALTER UNDO TABLESPACE u SET INACTIVE", none},
		{"ALTER TABLESPACE u RENAME TO v", none},
		{"ALTER INSTANCE ROTATE INNODB MASTER KEY", none},
		{"ALTER THING t", unknown()},
		{"ALTER", unknown()},
		{"DROP INDEX i ON users", none},
		{"DROP VIEW IF EXISTS v, w CASCADE", none},
		{"DROP TRIGGER IF EXISTS shop.g", none},
		{"DROP PROCEDURE f", none},
		{"DROP USER u@`%`", none},
		{"DROP SPATIAL REFERENCE SYSTEM 4120", none},
		{"DROP", unknown()},
	},
	"https://mariadb.com/docs/server/reference/sql-statements/data-definition/create": {
		{"CREATE OR REPLACE DATABASE crm", changes(a("crm."))},
		{"CREATE OR REPLACE SCHEMA crm CHARACTER SET utf8mb4", changes(a("crm."))},
		{"CREATE SEQUENCE s START WITH 1", none},
		{"CREATE TEMPORARY SEQUENCE s", none},
		{"CREATE OR REPLACE PACKAGE BODY k AS PROCEDURE f AS BEGIN DELETE FROM users; END; END", none},
		{"CREATE OR REPLACE AGGREGATE FUNCTION f(x INT) RETURNS INT BEGIN FETCH GROUP NEXT ROW; RETURN 1; END", none},
		{"CREATE OR REPLACE DEFINER=r ROLE x", none},
		{"ALTER SEQUENCE s RESTART 10", none},
		{"DROP SEQUENCE s", none},
		{"DROP PACKAGE BODY k", none},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/alter-table.html": {
		{"ALTER TABLE users ADD COLUMN name VARCHAR(10) NOT NULL DEFAULT 'RENAME TO x' AFTER id, DROP COLUMN old", changes(a("users"))},
		{"ALTER TABLE users", changes(a("users"))},
		{"ALTER TABLE crm.users ENGINE=InnoDB", changes(a("crm.users"))},
		{"ALTER TABLE crm . users ENGINE InnoDB COMMENT = 'RENAME TO x'", changes(a("crm.users"))},
		{"ALTER TABLE .users FORCE", changes(a("users"))},
		{"ALTER TABLE users RENAME TO people", changes(a("users"), p("people"))},
		{"ALTER TABLE users RENAME people", changes(a("users"), p("people"))},
		{"ALTER TABLE users RENAME AS crm.people", changes(a("users"), p("crm.people"))},
		{"ALTER TABLE users RENAME = people", changes(a("users"), p("people"))},
		{"ALTER TABLE users ADD n DECIMAL(10, 2) DEFAULT 1.5, RENAME TO people, ALGORITHM=INPLACE", changes(a("users"), p("people"))},
		{"ALTER TABLE users COMMENT 'x', RENAME people REMOVE PARTITIONING", changes(a("users"), p("people"))},
		{"ALTER TABLE users RENAME COLUMN name TO surname", changes(a("users"))},
		{"ALTER TABLE users RENAME INDEX i TO j, RENAME KEY k TO l", changes(a("users"))},
		{"ALTER TABLE users RENAME COLUMN name TO surname, RENAME TO people", changes(a("users"), p("people"))},
		{"ALTER TABLE users CHANGE `rename` `RENAME TO x` INT, ADD CHECK (`rename` > 0)", changes(a("users"))},
		{"ALTER TABLE users ADD COLUMN (x INT COMMENT 'EXCHANGE', y INT)", changes(a("users"))},
		{"ALTER TABLE users ADD x INT AFTER EXCHANGE PARTITION BY HASH (id)", changes(p("users"))}, // a column of that name
		{"ALTER TABLE users CONVERT TO CHARACTER SET utf8mb4", changes(a("users"))},
		{"ALTER TABLE users ALTER COLUMN x SET DEFAULT (CONVERT('x' USING utf8mb4)), ORDER BY x, y", changes(a("users"))},
		{"ALTER TABLE users ADD INDEX ((CAST(x ->> '$.a' AS CHAR(10)))), DISABLE KEYS", changes(a("users"))},
		{"ALTER TABLE users DISCARD TABLESPACE", changes(a("users"))},
		{"ALTER TABLE users IMPORT TABLESPACE", changes(p("users"))},
		{"ALTER TABLE users UNION=(x, y)", changes(p("users"))},
		{"ALTER TABLE users RENAME TO", unknown()},
		{"ALTER TABLE users RENAME TO 'people'", unknown()},
		{"ALTER TABLE users RENAME TO a.b.c", unknown()},
		{"ALTER TABLE", unknown()},
		{"ALTER TABLE users ADD x INT; DROP TABLE users", unknown()},
		{"ALTER TABLE users ADD (x INT", unknown()},
		{"ALTER TABLE users ADD x INT DEFAULT 'unfinished", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/alter-table-partition-operations.html": {
		{"ALTER TABLE users EXCHANGE PARTITION p0 WITH TABLE old", changes(p("users"), p("old"))},
		{"ALTER TABLE users EXCHANGE PARTITION p0 WITH TABLE crm.old WITHOUT VALIDATION", changes(p("users"), p("crm.old"))},
		{"ALTER TABLE users EXCHANGE PARTITION", changes(p("users"))},
		{"ALTER TABLE users EXCHANGE PARTITION p0 WITH TABLE", unknown()},
		{"ALTER TABLE users IMPORT PARTITION p0, p1 TABLESPACE", changes(p("users"))},
		{"ALTER TABLE users REPAIR PARTITION ALL", changes(p("users"))},
		{"ALTER TABLE users TRUNCATE PARTITION p0", changes(a("users"))},
		{"ALTER TABLE users DROP PARTITION p0, p1", changes(a("users"))},
		{"ALTER TABLE users ADD PARTITION (PARTITION p3 VALUES LESS THAN (2000) COMMENT 'RENAME TO x')", changes(a("users"))},
		{"ALTER TABLE users REORGANIZE PARTITION p0 INTO (PARTITION n0 VALUES LESS THAN (5), PARTITION n1 VALUES LESS THAN (10))", changes(a("users"))},
		{"ALTER TABLE users PARTITION BY HASH(id) PARTITIONS 4", changes(a("users"))},
	},
	"https://mariadb.com/docs/server/reference/sql-statements/data-definition/alter/alter-table": {
		{"ALTER ONLINE IGNORE TABLE IF EXISTS users WAIT 5 ADD UNIQUE (name), RENAME TO people", changes(a("users"), p("people"))},
		{"ALTER TABLE IF EXISTS users NOWAIT RENAME COLUMN IF EXISTS name TO surname", changes(a("users"))},
		{"ALTER TABLE users RENAME INDEX IF EXISTS i TO j", changes(a("users"))},
		{"ALTER TABLE users CONVERT PARTITION p0 TO TABLE old", changes(p("users"), p("old"))},
		{"ALTER TABLE users CONVERT TABLE crm.old TO PARTITION p1 VALUES LESS THAN (10) WITH VALIDATION", changes(p("users"), p("crm.old"))},
		{"ALTER TABLE users CONVERT PARTITION p0", changes(p("users"))},
		{"ALTER TABLE users ADD SYSTEM VERSIONING, ADD PERIOD FOR p(s, e)", changes(a("users"))},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/drop-table.html": {
		{"DROP TABLE users", changes(a("users"))},
		{"DROP TABLES users, crm.people, .x CASCADE", changes(a("users"), a("crm.people"), a("x"))},
		{"DROP TABLE IF EXISTS `users` /* generated by server */", changes(a("users"))},
		{"DROP TABLE tables RESTRICT", changes(a("tables"))},
		{"DROP TEMPORARY TABLE IF EXISTS users", none},
		{"DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `users`", none},
		{"DROP TABLE", unknown()},
		{"DROP TABLE users,", unknown()},
		{"DROP TABLE users people", unknown()},
		{"DROP TABLE 1", unknown()},
		{"DROP TABLE ``", unknown()},
		{"DROP TABLE 'users'", unknown()},
		{"DROP TABLE IF users", unknown()},
		{"DROP TABLE users; DROP TABLE people", unknown()},
		{"DROP TABLE users WAIT 5 RESTRICT", changes(a("users"))}, // MariaDB
		{"DROP TABLE users NOWAIT", changes(a("users"))},
		{"DROP TABLE users WAIT", changes(a("users"))},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/drop-database.html": {
		{"DROP DATABASE crm", changes(a("crm."))},
		{"DROP SCHEMA IF EXISTS crm", changes(a("crm."))},
		{"DROP DATABASE", unknown()},
		{"DROP DATABASE ``", unknown()},
		{"DROP DATABASE crm.users", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/truncate-table.html": {
		{"TRUNCATE users", changes(z("users"))},
		{"TRUNCATE TABLE crm.users", changes(z("crm.users"))},
		{"TRUNCATE TABLE users NOWAIT", changes(z("users"))},
		{"TRUNCATE TABLE users WAIT 0.5", changes(z("users"))},
		{"TRUNCATE TABLE users, people", changes(z("users"), z("people"))},
		{"TRUNCATE", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/rename-table.html": {
		{"RENAME TABLE users TO people", changes(a("users"), p("people"))},
		{"RENAME TABLES users TO tmp, crm.people TO users, tmp TO crm.people;", changes(a("users"), p("tmp"), a("crm.people"), p("users"), a("tmp"), p("crm.people"))},
		{"RENAME TABLE IF EXISTS users WAIT 5 TO people, x NOWAIT TO y", changes(a("users"), p("people"), a("x"), p("y"))},
		{"RENAME USER x TO y", none},
		{"RENAME TABLE users", unknown()},
		{"RENAME TABLE users TO", unknown()},
		{"RENAME TABLE users TO people x", unknown()},
		{"RENAME users TO people", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/table-maintenance-statements.html": {
		{"ANALYZE NO_WRITE_TO_BINLOG TABLE users", none},
		{"ANALYZE TABLE users UPDATE HISTOGRAM ON name", none},
		{"OPTIMIZE TABLE users", none},
		{"CHECK TABLE users", none},
		{"CHECKSUM TABLE users", none},
		{"REPAIR TABLE users", changes(p("users"))},
		{"REPAIR LOCAL TABLES users, crm.users QUICK EXTENDED USE_FRM", changes(p("users"), p("crm.users"))},
		{"REPAIR TABLE", unknown()},
		{"REPAIR VIEW v FROM MYSQL", none},
	},
	"https://mariadb.com/docs/server/reference/sql-statements/administrative-sql-statements/analyze-and-explain-statements/analyze-statement": {
		{"ANALYZE UPDATE users SET x = 1", unknown()},
		{"ANALYZE FORMAT=JSON DELETE FROM users", unknown()},
	},
	"https://mariadb.com/docs/server/reference/sql-statements/administrative-sql-statements/set-commands/set-statement": {
		{"SET STATEMENT max_statement_time=1000 FOR DROP TABLE users", unknown()},
		{"SET STATEMENT x=1 FOR DELETE FROM users", unknown()},
		{"SET STATEMENT x=1", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/sql-server-administration-statements.html": {
		{"SET x = 1", none},
		{"SET PASSWORD FOR u@`%` = 'p'", none},
		{"SET ROLE NONE", none},
		{"GRANT ALL ON *.* TO u", none},
		{"REVOKE ALL ON shop.* FROM u", none},
		{"FLUSH TABLES users", none},
		{"USE shop", none},
		{"INSTALL SONAME 'x'", none},
		{"UNINSTALL PLUGIN x", none},
		{"CHANGE MASTER TO MASTER_HOST='x'", none},
		{"RESET MASTER", none},
		{"PURGE BINARY LOGS TO 'x'", none},
		{"KILL 1", none},
		{"SHUTDOWN", none},
		{"LOCK TABLES users WRITE", none},
		{"UNLOCK TABLES", none},
		{"HELP 'x'", none},
		{"SHOW TABLES", none},
		{"DEALLOCATE PREPARE x", none},
		{"BACKUP STAGE START", none},
		{"FLUSH TABLES; DELETE FROM users", unknown()},
		{"SHOW 'unfinished", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/sql-data-manipulation-statements.html": {
		{"INSERT INTO users VALUES (1)", unknown()},
		{"UPDATE users SET x = 1", unknown()},
		{"DELETE FROM users", unknown()},
		{"REPLACE INTO users VALUES (1)", unknown()},
		{"LOAD DATA INFILE 'x' INTO TABLE users", unknown()},
		{"CALL f()", unknown()},
		{"DO f()", unknown()},
		{"WITH x AS (SELECT 1) DELETE FROM users", unknown()},
		{"SELECT f()", unknown()},
		{"(SELECT f())", unknown()},
		{"EXECUTE x", unknown()},
		{"VALUES ROW(f())", unknown()},
		{"MERGE INTO users", unknown()},
		{"HANDLER users OPEN", unknown()},
		{"IMPORT TABLE FROM 'x.sdi'", unknown()},
		{"FROBNICATE users", unknown()},
		{"`DROP` TABLE users", unknown()},
		{"'COMMIT'", unknown()},
		{"= COMMIT", unknown()},
	},
}

// Statements of unusual spelling.
var spelled = map[string][]reading{
	"https://dev.mysql.com/doc/refman/8.4/en/comments.html": {
		{"", none},
		{" \t\r\n", none},
		{"# Dummy event replacing event type 162 that slave cannot handle.", none},
		{"/* nothing */ -- at all\n# here", none},
		{"--", none},
		{"-- DROP TABLE users", none},
		{"--\tDROP TABLE users\nCOMMIT", control(Commit)},
		{"--DROP TABLE users", unknown()},
		{"DROP/**/TABLE/**/users", changes(a("users"))},
		{"/*!40101 DROP TABLE users */", changes(a("users"))},
		{"/*!DROP TABLE users*/", changes(a("users"))},
		{"/*!50100DROP*/ TABLE /*!080400 users */", changes(a("users"))},
		{"/*M!100100 DROP TABLE users */", changes(a("users"))},
		{"/*!40101 DROP /* TABLE old */ TABLE users */;", changes(a("users"))},
		{"/*!40101 DROP /*M!100100 TABLE */ users */", changes(a("users"))},
		{"CREATE TABLE users (id INT) /*!50100 PARTITION BY HASH (id) */", changes(a("users"))},
		{"ALTER TABLE users /*!50100 RENAME TO people */", changes(a("users"), p("people"))},
		{"ALTER TABLE users /* RENAME TO people */ FORCE", changes(a("users"))},
		{"ALTER TABLE users FORCE # , RENAME TO people", changes(a("users"))},
		{"ALTER TABLE users FORCE, -- x\n RENAME TO people", changes(a("users"), p("people"))},
		{"DROP TABLE users /* unfinished", unknown()},
		{"DROP TABLE users /*! CASCADE", unknown()},
		{"DROP TABLE users */", unknown()},
		{"/*", unknown()},
		{"/*/", unknown()},
		{"/*!", unknown()},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/identifiers.html": {
		{"drop table Users", changes(a("Users"))},
		{"dRoP tAbLe `crm`.`my ``table``; --`", changes(a("crm.my `table`; --"))},
		{"DROP TABLE `crm.users`", changes(event.Change{Kind: event.Alter, Schema: "shop", Table: "crm.users"})},
		{`DROP TABLE "crm"."my ""table"""`, changes(a(`crm.my "table"`))}, // ANSI_QUOTES
		{`ALTER TABLE "users" ADD "RENAME TO x" INT, RENAME TO "people"`, changes(a("users"), p("people"))},
		{`DROP TABLE "a\", "b\"`, unknown()},
		{"DROP TABLE 2024_orders, 1a.2b, $x, größe, 表", changes(a("2024_orders"), a("1a.2b"), a("$x"), a("größe"), a("表"))},
		{"DROP TABLE crm.2024", changes(a("crm.2024"))},
		{"DROP TABLE crm.table", changes(a("crm.table"))},
		{"DROP TABLE `a\xff`", unknown()},
		{"DROP TABLE a\xff", unknown()},
		{"DROP TABLE `\x95`", unknown()}, // the second byte of a character of Shift JIS
		{"DROP TABLE `x\x00`", changes(a("x\x00"))},
		{"DROP TABLE x\x00", unknown()},
		{"DROP TABLE `x", unknown()},
		{`DROP TABLE x\`, unknown()},
		{"ALTER TABLE users ADD exchange INT, ADD import INT, DROP union_", changes(p("users"))}, // columns of such names
		{"ALTER TABLE users ADD `exchange` INT, DROP `import`", changes(a("users"))},
		{"ALTER TABLE users ADD CHECK (x.rename = 1), ADD y INT DEFAULT x.rename", changes(a("users"))},
	},
	"https://dev.mysql.com/doc/refman/8.4/en/string-literals.html": {
		{`ALTER TABLE users COMMENT 'it''s', RENAME TO people`, changes(a("users"), p("people"))},
		{`ALTER TABLE users COMMENT 'it\'s, RENAME TO x'`, unknown()},
		{`ALTER TABLE users COMMENT 'it\\', RENAME TO people`, changes(a("users"), p("people"))},
		{`ALTER TABLE users COMMENT "it's, ""RENAME TO x"`, changes(a("users"))},
		{`ALTER TABLE users ADD x INT DEFAULT _utf8mb4'RENAME', ADD y CHAR DEFAULT N'RENAME TO x', ADD z BIT DEFAULT b'0', ADD w BINARY DEFAULT x'00'`, changes(a("users"))},
		{`ALTER TABLE users COMMENT 'C:\', RENAME TO people`, unknown()},                          // with NO_BACKSLASH_ESCAPES it is renamed
		{`ALTER TABLE users ADD x INT COMMENT 'C:\', RENAME TO people, COMMENT 'D:\'`, unknown()}, // with NO_BACKSLASH_ESCAPES it is renamed
		{`ALTER TABLE users COMMENT 'a\' "' , RENAME TO people, COMMENT "' \'"-- "`, unknown()},
		{`ALTER TABLE users ADD x INT COMMENT 'it\'s', ADD y INT COMMENT 'RENAME TO x', ADD z INT COMMENT 'it\'s'`, unknown()},
		{"ALTER TABLE users COMMENT '\x95\\', RENAME TO people", unknown()},
		{`XA COMMIT 'a\'`, unknown()},
		{`CREATE VIEW v AS SELECT 'it\'s'`, none},
		{`GRANT ALL ON *.* TO u IDENTIFIED BY 'it\'s'`, none},
		{`XA COMMIT 'a\nb'`, xa(XACommit, `'a\nb'`)},
	},
	"leading and closing signs": {
		{";;COMMIT;;", control(Commit)},
		{"COMMIT;/* nothing */", control(Commit)},
		{"COMMIT;COMMIT", unknown()},
		{"BEGIN;DELETE FROM users", unknown()},
		{"(DROP TABLE users", changes(a("users"))},
		{"(DROP TABLE users)", unknown()},
		{";", none},
		{"(", none},
	},
}

func TestRead(t *testing.T) {
	for _, tables := range []map[string][]reading{regular, spelled} {
		for page, readings := range tables {
			for _, c := range readings {
				if got := Read(c.statement, "shop"); !got.same(&c.want) {
					t.Errorf("%s (%s)\n got %v\nwant %v", c.statement, page, show(got), show(c.want))
				}
			}
		}
	}
}

// Where neither the statement nor the session names a schema, the table may be of any.
func TestNoSchema(t *testing.T) {
	for statement, want := range map[string]Effect{
		"DROP TABLE users":                   changes(a(".")),
		"TRUNCATE users":                     changes(p(".")),
		"RENAME TABLE users TO crm.people":   changes(a("."), p("crm.people")),
		"ALTER TABLE crm.users RENAME users": changes(a("crm.users"), p(".")),
		"DROP DATABASE crm":                  changes(a("crm.")),
		"COMMIT":                             control(Commit),
	} {
		if got := Read(statement, ""); !got.same(&want) {
			t.Errorf("%s\n got %v\nwant %v", statement, show(got), show(want))
		}
	}
}

// A statement about more tables than are listed one by one counts as one about all tables.
func TestManyTables(t *testing.T) {
	list := strings.Repeat("x,", maxChanges-1) + "x"
	if got := Read("DROP TABLE "+list, "shop"); got.Unknown || len(got.Changes) != maxChanges {
		t.Errorf("%d changes, unknown: %v", len(got.Changes), got.Unknown)
	}
	if got, want := Read("DROP TABLE y,"+list, "shop"), unknown(); !got.same(&want) {
		t.Errorf("%d changes, unknown: %v", len(got.Changes), got.Unknown)
	}
}

// How a statement is laid out, whether its names are quoted, and the case of its keywords, changes
// nothing.
func TestSpelling(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for _, readings := range regular {
		for _, c := range readings {
			for range 50 {
				s := respell(r, c.statement)
				if got := Read(s, "shop"); !got.same(&c.want) {
					t.Fatalf("seed %d: %s\nof %s\n got %v\nwant %v", seed, s, c.statement, show(got), show(c.want))
				}
			}
		}
	}
}

// respell writes a statement in another way. In it keywords are in upper case and names in lower
// case.
func respell(r *rand.Rand, statement string) string {
	spaces := []string{" ", "\n", "\t\r\n", "/**/", "/* DROP TABLE x; ' */", " -- it's\n", "#`\n", "/*! */",
		"/*M!100100*/", "/*!50000 \n*/"}
	var b strings.Builder
	l := lexer{text: statement}
	for from := 0; ; from = l.at {
		t := l.scan()
		if l.bad || strings.Contains(statement, "/*") {
			return statement
		}
		b.WriteByte(' ')
		for range r.IntN(3) {
			b.WriteString(spaces[r.IntN(len(spaces))])
		}
		if t.kind == end {
			return b.String()
		}
		text := strings.TrimSpace(statement[from:l.at])
		switch {
		case len(text) == 1 && strings.HasPrefix(statement[l.at:], "'"): // X'00'
			from = l.at
			l.scan()
			text += statement[from:l.at]
		case t.kind != word || t.text[0] >= '0' && t.text[0] <= '9':
		case strings.ToUpper(text) == text:
			if r.IntN(2) == 0 {
				text = strings.ToLower(text)
			}
		case r.IntN(2) == 0:
			text = "`" + text + "`"
		}
		b.WriteString(text)
	}
}

func show(e Effect) string {
	return fmt.Sprintf("control %d, xid %s, %v, unknown %v", e.Control, e.XID, e.Changes, e.Unknown)
}
