package mysqlbinlog

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// columnsOf is text of the columns that have these names, as changes of a versioned table have
// times that differ each time.
func columnsOf(c event.Change, names ...string) string {
	var s []string
	for _, r := range []event.Row{c.Before, c.After} {
		if !r.Exists() {
			s = append(s, "none")
			continue
		}
		var values []string
		for _, n := range names {
			v := r.Get(n)
			if !v.Known() {
				values = append(values, "?")
				continue
			}
			values = append(values, v.Text())
		}
		s = append(s, strings.Join(values, " "))
	}
	return c.Kind.String() + ": " + strings.Join(s, " -> ")
}

// The changes of a system-versioned table are about its current rows, and not about its history.
// MySQL has no such tables.
func TestVersionedTables(t *testing.T) {
	const period = ", a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, z TIMESTAMP(6) GENERATED ALWAYS AS ROW END, " +
		"PERIOD FOR SYSTEM_TIME (a, z)"
	for name, table := range map[string]string{
		"implicit":      "(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
		"explicit":      "(id INT PRIMARY KEY, v INT" + period + ") WITH SYSTEM VERSIONING",
		"invisible":     "(id INT PRIMARY KEY, v INT" + strings.NewReplacer("START", "START INVISIBLE", "END", "END INVISIBLE").Replace(period) + ") WITH SYSTEM VERSIONING",
		"partitioned":   "(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME (PARTITION h HISTORY, PARTITION c CURRENT)",
		"one column":    "(id INT PRIMARY KEY, v INT WITH SYSTEM VERSIONING, w INT)",
		"no key":        "(id INT, v INT) WITH SYSTEM VERSIONING",
		"not versioned": "(id INT PRIMARY KEY, v INT, row_start TIMESTAMP(6) NULL, row_end TIMESTAMP(6) NULL)",
	} {
		for _, image := range []string{"FULL", "MINIMAL"} {
			t.Run(name+" "+image, func(t *testing.T) {
				x := onMariaDB(t)
				x.Do("CREATE TABLE a " + table)
				l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
				history := []string{"DELETE HISTORY FROM a"}
				if name == "not versioned" {
					history = nil
				}
				x.session("binlog_row_image", image, append([]string{
					"INSERT INTO a (id, v) VALUES (1, 1), (2, 2)", "UPDATE a SET v = 5 WHERE id = 1",
					"UPDATE a SET id = 3 WHERE id = 1", "DELETE FROM a WHERE id = 2",
					"UPDATE a SET v = 6", "DELETE FROM a"}, append(history,
					"INSERT INTO a (id, v) VALUES (9, 9)")...)...)
				ids := []string{"insert: none -> 1", "insert: none -> 2", "update: 1 -> 1", "update: 1 -> 3",
					"delete: 2 -> none", "update: 3 -> 3", "delete: 3 -> none", "insert: none -> 9"}
				values := []string{"insert: none -> 1", "insert: none -> 2", "update: 1 -> 5", "update: 5 -> 5",
					"delete: 2 -> none", "update: 5 -> 6", "delete: 6 -> none", "insert: none -> 9"}
				for i, c := range l.Changes(len(ids)) {
					c.After = c.After.Over(c.Before)
					if got := columnsOf(c, "id"); got != ids[i] {
						t.Errorf("%d: %s, want %s", i, got, ids[i])
					}
					if got := columnsOf(c, "v"); image == "FULL" && got != values[i] {
						t.Errorf("%d: %s, want %s", i, got, values[i])
					}
				}
			})
		}
	}
}

// REPLACE is delivered as a delete and an insert. Inserts and deletes of history are not delivered.
func TestHistoricalRowsAreNotDelivered(t *testing.T) {
	x := onMariaDB(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.session("system_versioning_insert_history", "ON",
		"INSERT INTO a (id, v, row_start, row_end) VALUES (7, 7, '2020-01-01', '2021-01-01')",
		"INSERT INTO a (id, v) VALUES (1, 1)",
		"REPLACE INTO a (id, v) VALUES (1, 2)", "INSERT INTO a (id, v) VALUES (1, 3) ON DUPLICATE KEY UPDATE v = 4",
		"DELETE HISTORY FROM a", "INSERT INTO a (id, v) VALUES (8, 8)")
	want := []string{"insert: none -> 1 1", "delete: 1 1 -> none", "insert: none -> 1 2", "update: 1 2 -> 1 4",
		"insert: none -> 8 8"}
	for i, c := range l.Changes(len(want)) {
		if got := columnsOf(c, "id", "v"); got != want[i] {
			t.Errorf("%d: %s, want %s", i, got, want[i])
		}
	}
}

// A user who may not see a table gets its history, too, with a warning.
func TestHistoryOfWhoMayNotSeeIt(t *testing.T) {
	x := onMariaDB(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING", "CREATE USER blindv",
		"GRANT REPLICATION SLAVE ON *.* TO blindv")
	t.Cleanup(func() { x.Do("DROP USER blindv") })
	var log testenv.Log
	l := x.Listen(x.source(func(o *Options) { o.User, o.Logger = "blindv", slog.New(slog.NewTextHandler(&log, nil)) }),
		x.Need([]string{"a", "id"}))
	x.Do("INSERT INTO a VALUES (1, 1)", "UPDATE a SET v = 2")
	l.Changes(3)
	if !strings.Contains(log.String(), "may be system-versioned") || !strings.Contains(log.String(), x.Schema+".a") {
		t.Error(log.String())
	}
}

const byTransaction = ", s BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, e BIGINT UNSIGNED GENERATED ALWAYS AS ROW " +
	"END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING"

// TestTablesVersionedByTransactions: a table that is versioned by transactions is logged as
// statements. Each of them concerns all tables, even if the table is not bound. A warning names all
// tables of this kind.
func TestTablesVersionedByTransactions(t *testing.T) {
	x := onMariaDB(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, v INT"+byTransaction,
		"CREATE TABLE unbound (id INT PRIMARY KEY, v INT"+byTransaction, "CREATE TABLE plain (id INT PRIMARY KEY)",
		"CREATE TABLE bytime (id INT PRIMARY KEY) WITH SYSTEM VERSIONING")
	var log testenv.Log
	l := x.Listen(x.source(func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) }),
		x.Need([]string{"a", "id"}, []string{"plain", "id"}))
	x.Do("INSERT INTO a (id, v) VALUES (1, 1)", "UPDATE a SET v = 2", "DELETE FROM a WHERE id = 1",
		"INSERT INTO unbound (id, v) VALUES (1, 1)", "INSERT INTO plain VALUES (1)")
	l.Want("replace  unread", "replace  unread", "replace  unread", "replace  unread", "insert plain: 1")
	if c := l.Changes(1)[0]; !strings.Contains(c.Unread.Error(), "versioned by transactions") {
		t.Error(c.Unread)
	}
	for text, want := range map[string]bool{"versioned by transactions": true, x.Schema + ".a": true,
		x.Schema + ".unbound": true, x.Schema + ".bytime": false, x.Schema + ".plain": false} {
		if strings.Contains(log.String(), text) != want {
			t.Errorf("%s: %s", text, log.String())
		}
	}
}

// Once a table is versioned in another way, or no more, its changes are read as they are then.
func TestVersioningChanges(t *testing.T) {
	x := onMariaDB(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, v INT)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.Do("INSERT INTO a VALUES (1, 1)", "ALTER TABLE a ADD SYSTEM VERSIONING", "UPDATE a SET v = 2")
	l.Changes(3)
	x.Do("ALTER TABLE a DROP SYSTEM VERSIONING", "UPDATE a SET v = 3", "DELETE FROM a")
	var kinds []string
	for _, c := range l.Changes(6) {
		kinds = append(kinds, c.Kind.String())
	}
	if got := strings.Join(kinds, " "); got != "insert alter update alter update delete" {
		t.Error(got)
	}
}
