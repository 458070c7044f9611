package ddl

import (
	"database/sql"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// What a real server logs of a statement, which it sometimes writes anew, is read as what the
// statement has done.
func TestServer(t *testing.T) {
	m := testenv.SharedMariaDB(t)
	db := m.DB(t)
	db.SetMaxOpenConns(1)
	log := &binlog{db: db}
	shop, crm := m.Database(t), m.Database(t)+"_crm"
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(),
			strings.NewReplacer("SHOP", shop, "CRM", crm).Replace(statement)); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	t.Cleanup(func() { _, _ = db.Exec("DROP DATABASE IF EXISTS " + crm) })

	var none []event.Change
	unread := unknown().Changes
	is := func(c ...event.Change) []event.Change {
		for i := range c {
			c[i].Schema = strings.NewReplacer("shop", shop, "crm", crm).Replace(c[i].Schema)
		}
		return c
	}
	for _, c := range []struct {
		statement string
		want      []event.Change
	}{
		{"CREATE DATABASE CRM", none},
		{"CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(20) DEFAULT 'RENAME TO x') COMMENT 'it''s; RENAME TO x'", is(a("users"))},
		{"CREATE TABLE IF NOT EXISTS users2 (id INT)", is(a("users2"))},
		{"INSERT INTO users VALUES (1, 'a'), (2, 'b')", none},
		{"BEGIN", none},
		{"UPDATE users SET name = 'c' WHERE id = 1", none},
		{"SAVEPOINT s", none},
		{"DELETE FROM users WHERE id = 2", none},
		{"ROLLBACK TO s", none},
		{"COMMIT", none},
		{"CREATE TABLE CRM.copy LIKE users", is(a("crm.copy"))},
		{"CREATE TABLE selected SELECT * FROM users", is(a("selected"))}, // without the SELECT
		{"CREATE OR REPLACE TABLE selected (x INT) AS SELECT * FROM users", is(a("selected"))},
		{"CREATE TABLE selected2 (id INT) ENGINE=MyISAM IGNORE (SELECT id FROM users)", is(a("selected2"))},
		{"CREATE TEMPORARY TABLE t SELECT * FROM users", none},
		{"CREATE TABLE liked LIKE t", is(a("liked"))}, // the server names the columns of what is not in the log
		{"ALTER TABLE t ADD x INT", none},
		{"DROP TEMPORARY TABLE t", none},
		{"CREATE TEMPORARY TABLE t (id INT)", none},
		{"DROP TABLE t, liked, selected2", is(a("liked"), a("selected2"))},
		{"DROP TABLE IF EXISTS nothing, selected", is(a("nothing"), a("selected"))},
		{"ALTER TABLE users ADD COLUMN `rename` INT DEFAULT 5, ADD INDEX n (name)", is(a("users"))},
		{"ALTER TABLE users RENAME COLUMN `rename` TO exchanged, RENAME INDEX n TO m", is(a("users"))},
		{"ALTER TABLE users DROP exchanged, RENAME TO CRM.people, ALGORITHM=COPY", is(a("users"), p("crm.people"))},
		{"ALTER IGNORE TABLE CRM.people WAIT 5 RENAME users", is(a("crm.people"), p("users"))},
		{"/*!40101 ALTER /* IGNORE */ TABLE */ users /*M!100100 RENAME = people */ # here", is(a("users"), p("people"))},
		{"/*!99999 ALTER TABLE users RENAME nothing */ ALTER TABLE people /*!99999 RENAME nothing, */ FORCE", is(a("people"))},
		{"SET STATEMENT max_statement_time=100 FOR RENAME TABLE people NOWAIT TO users", unread},
		{"RENAME TABLE IF EXISTS users TO tmp, CRM.copy TO users, tmp TO CRM.copy, nothing TO something", is(a("users"), p("tmp"), a("crm.copy"), p("users"), a("tmp"), p("crm.copy"), a("nothing"), p("something"))},
		{"TRUNCATE users", is(z("users"))},
		{"TRUNCATE TABLE `CRM`.`copy` NOWAIT", is(z("crm.copy"))},
		{"CREATE TABLE parts (id INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))", is(a("parts"))},
		{"CREATE TABLE part (id INT)", is(a("part"))},
		{"ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE part", is(p("parts"), p("part"))},
		{"ALTER TABLE parts CONVERT PARTITION p0 TO TABLE CRM.p0", is(p("parts"), p("crm.p0"))},
		{"ALTER TABLE parts CONVERT TABLE part TO PARTITION p2 VALUES LESS THAN (30)", is(p("parts"), p("part"))},
		{"ALTER TABLE parts TRUNCATE PARTITION p1", is(a("parts"))},
		{"ALTER TABLE parts REPAIR PARTITION ALL", is(p("parts"))},
		{"ALTER TABLE CRM.p0 DISCARD TABLESPACE", is(a("crm.p0"))},
		{"OPTIMIZE TABLE users", none},
		{"ANALYZE TABLE users", none},
		{"REPAIR TABLE users", is(p("users"))},
		{"FLUSH TABLES", none},
		{"CREATE INDEX i ON users (name)", none},
		{"DROP INDEX i ON users", none},
		{"CREATE VIEW v AS SELECT * FROM users", none},
		{"ALTER VIEW v AS SELECT id FROM users", none},
		{"CREATE OR REPLACE ALGORITHM=MERGE SQL SECURITY INVOKER VIEW v AS SELECT 1", none},
		{"DROP VIEW v", none},
		{"CREATE PROCEDURE f() BEGIN DELETE FROM users; INSERT INTO users VALUES (7, 'x'); END", none},
		{"CALL f()", none},
		{"CREATE FUNCTION g() RETURNS INT DETERMINISTIC BEGIN DELETE FROM users; RETURN 1; END", none},
		{"DO g()", none},
		{"SELECT g()", none},
		{"CREATE TRIGGER r BEFORE INSERT ON users FOR EACH ROW BEGIN SET NEW.name = 'x'; END", none},
		{"INSERT INTO users VALUES (8, 'y')", none},
		{"REPLACE INTO users VALUES (8, 'z')", none},
		{"DROP TRIGGER r", none},
		{"CREATE EVENT e ON SCHEDULE EVERY 1 YEAR STARTS '2037-01-01 00:00:00' DO BEGIN DELETE FROM users; END", none},
		{"ALTER EVENT e DO BEGIN DELETE FROM users; COMMIT; END", none},
		{"DROP EVENT e", none},
		{"DROP PROCEDURE f", none},
		{"CREATE SEQUENCE q", none},
		{"ALTER SEQUENCE q RESTART 10", none},
		{"DROP SEQUENCE q", none},
		{"CREATE USER ddl_test IDENTIFIED BY 'p'", none},
		{"GRANT ALL ON SHOP.* TO ddl_test", none},
		{"SET PASSWORD FOR ddl_test = PASSWORD('q')", none},
		{"RENAME USER ddl_test TO ddl_test2", none},
		{"REVOKE ALL ON SHOP.* FROM ddl_test2", none},
		{"DROP USER ddl_test2", none},
		{"CREATE ROLE ddl_role", none},
		{"DROP ROLE ddl_role", none},
		{"XA START 'x''1', 'b', 5", none},
		{"INSERT INTO users VALUES (9, 'y')", none},
		{"XA END 'x''1', 'b', 5", none},
		{"XA PREPARE 'x''1', 'b', 5", none},
		{"XA COMMIT 'x''1', 'b', 5", none},
		{"BEGIN NOT ATOMIC INSERT INTO users VALUES (10, 'y'); TRUNCATE users; END", is(z("users"))},
		{"CREATE TABLE memory (id INT) ENGINE=MEMORY", is(a("memory"))},
		{"SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", none},
		{`ALTER TABLE "users" ADD "RENAME x" INT COMMENT 'C:\', RENAME TO "my ""table\"`, unread},
		{`RENAME TABLE "my ""table\" TO "users"`, unread},
		{`ALTER TABLE "users" RENAME "my ""table"`, is(a("users"), p(`my "table`))},
		{`RENAME TABLE "my ""table" TO "users"`, is(a(`my "table`), p("users"))},
		{"SET sql_mode = 'ORACLE'", none},
		{"CREATE OR REPLACE PACKAGE k AS PROCEDURE f; END", none},
		{"CREATE PACKAGE BODY k AS PROCEDURE f AS BEGIN DELETE FROM users; END; END", none},
		{"DROP PACKAGE k", none},
		{"DROP TABLE users, memory CASCADE", is(a("users"), a("memory"))},
		{"SET sql_mode = DEFAULT", none},
		{"CREATE OR REPLACE DATABASE CRM", is(a("crm."))},
		{"DROP DATABASE IF EXISTS CRM", is(a("crm."))},
	} {
		log.start(t)
		exec(c.statement)
		var got []event.Change
		for _, l := range log.read(t) {
			e := Read(l.statement, l.schema)
			if e.Unknown && !reflect.DeepEqual(c.want, unread) {
				t.Errorf("%s: logged as %s, which is not understood", c.statement, l.statement)
			}
			got = append(got, e.Changes...)
			if strings.HasPrefix(c.statement, "XA COMMIT") {
				if want := xa(XACommit, "X'782731',X'62',5"); !e.same(&want) {
					t.Errorf("%s: logged as %s, read as %s", c.statement, l.statement, show(e))
				}
			}
			t.Logf("%-20.20s logged as %s", c.statement, l.statement)
		}
		if !slices.EqualFunc(got, c.want, func(a, b event.Change) bool { return a.String() == b.String() }) {
			t.Errorf("%s\n got %v\nwant %v", c.statement, got, c.want)
		}
	}
}

// binlog reads what a server has logged since start.
type binlog struct {
	db   *sql.DB
	file string
	pos  int64
}

type logged struct{ statement, schema string }

var use = regexp.MustCompile("(?s)^use [`\"]([^`\"]*)[`\"]; (.*)$")

func (b *binlog) start(t *testing.T) {
	t.Helper()
	var do, ignore string
	if err := b.db.QueryRowContext(t.Context(), "SHOW MASTER STATUS").Scan(&b.file, &b.pos, &do, &ignore); err != nil {
		t.Fatal(err)
	}
}

func (b *binlog) read(t *testing.T) (all []logged) {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), fmt.Sprintf("SHOW BINLOG EVENTS IN '%s' FROM %d", b.file, b.pos))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var file, kind, info string
		var pos, id, next int64
		if err := rows.Scan(&file, &pos, &kind, &id, &next, &info); err != nil {
			t.Fatal(err)
		}
		if kind != "Query" {
			continue
		}
		l := logged{statement: info}
		if m := use.FindStringSubmatch(info); m != nil {
			l = logged{m[2], m[1]}
		}
		all = append(all, l)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
