package ddl

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// FuzzRead reads anything: an Effect that is like one, and the same again.
func FuzzRead(f *testing.F) {
	for _, s := range statements() {
		f.Add(s, "shop")
	}
	f.Add("DROP TABLE users", "")
	f.Add("UPDATE users AS u SET a = 1", "shop")
	f.Add("DELETE HISTORY FROM `a``b`.users WHERE id = 1", "")
	f.Fuzz(check)
}

// The same for many inputs, without a look at what they cover.
func TestReadMillions(t *testing.T) {
	inputs := 50_000
	if testenv.Accepting {
		inputs = 10_000_000
	}
	var corpus [][]byte
	for _, s := range statements() {
		corpus = append(corpus, []byte(s))
	}
	for b := range testenv.Noise(1, inputs, corpus...) {
		check(t, string(b), "shop")
	}
	t.Logf("%d inputs", inputs)
}

func statements() []string {
	var all []string
	for _, tables := range []map[string][]reading{regular, spelled} {
		for _, readings := range tables {
			for _, c := range readings {
				all = append(all, c.statement)
			}
		}
	}
	return all
}

func check(t *testing.T, statement, schema string) {
	e := Read(statement, schema)
	if again := Read(statement, schema); !e.same(&again) {
		t.Fatalf("%q\nfirst %s\nthen  %s", statement, show(e), show(again))
	}
	if everything := unknown(); e.Unknown != e.same(&everything) && (e.Unknown || schema != "") {
		t.Fatalf("%q: %s", statement, show(e))
	}
	if (e.XID != "") != (e.Control >= XA) || e.Control != None && len(e.Changes) > 0 || len(e.Changes) > maxChanges {
		t.Fatalf("%q: %s", statement, show(e))
	}
	for _, c := range e.Changes {
		switch {
		case c.Kind != event.Alter && c.Kind != event.Truncate && c.Kind != event.Replace,
			c.Schema == "" && c.Table != "",
			c.Table == "" && schema != "" && !e.Unknown && c.Kind != event.Alter, // DROP DATABASE
			c.Before.Exists(), c.After.Exists(), !c.Time.IsZero():
			t.Fatalf("%q: %s", statement, show(e))
		}
	}
}

// Reading any long statement takes time linear in its length, and little memory.
func TestLongStatements(t *testing.T) {
	size := 1 << 20
	if testenv.Accepting {
		size = 20 << 20
	}
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	for name, statement := range map[string]string{
		"quotes":          "ALTER TABLE t ADD x INT DEFAULT " + fill("'"),
		"quoted quotes":   "ALTER TABLE t ADD x INT DEFAULT " + fill(`'\''`),
		"backslashes":     "ALTER TABLE t COMMENT '" + fill(`\`),
		"backticks":       "ALTER TABLE " + fill("`"),
		"double":          "ALTER TABLE t RENAME " + fill(`"`),
		"all quotes":      "ALTER TABLE t ADD " + fill("'`\"\\'"),
		"parentheses":     "ALTER TABLE t ADD CHECK " + fill("("),
		"closed":          "ALTER TABLE t ADD CHECK " + fill(")"),
		"leading":         fill("("),
		"semicolons":      "COMMIT" + fill(";"),
		"comments":        "ALTER TABLE t " + fill("/*"),
		"short comments":  "ALTER TABLE t " + fill("/**/"),
		"nested comments": "ALTER TABLE t " + fill("/*!40101 "),
		"nested, closed":  "ALTER TABLE t " + fill("/*!") + fill("*/"),
		"lines":           fill("#\n--\n"),
		"dashes":          "ALTER TABLE t " + fill("-"),
		"dots":            "ALTER TABLE t " + fill("."),
		"dotted names":    "ALTER TABLE " + fill("x."),
		"a word":          "ALTER TABLE t ADD " + fill("x"),
		"words":           "ALTER TABLE t " + fill("x "),
		"a name":          "DROP TABLE `" + fill("x") + "`",
		"tables":          "DROP TABLE " + fill("x,"),
		"renamed":         "ALTER TABLE t " + fill("RENAME x,"),
		"convert":         "ALTER TABLE t " + fill("CONVERT "),
		"rename column":   "ALTER TABLE t " + fill("RENAME COLUMN x TO y,"),
		"set statement":   fill("SET STATEMENT x=1 FOR "),
		"bytes":           "ALTER TABLE t ADD '" + fill("\xff\\"),
		"high bytes":      "ALTER TABLE t ADD " + fill("\xff`"),
		"xid":             "XA COMMIT '" + fill("x") + "'",
		"xid in bits":     "XA COMMIT B'" + fill("1") + "'",
		"definer":         "CREATE DEFINER=x@" + fill("x."),
		"unique":          "CREATE " + fill("UNIQUE "),
		"rows":            "INSERT INTO t VALUES " + fill("('x'),"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		Read(statement, "shop")
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		t.Logf("%s: %v", name, took)
		most := testenv.Hang // in time that grows with the square of the length it would take hours
		if testenv.Accepting {
			most = 10 * time.Second // a hundredth of it is usual
		}
		if took > most {
			t.Errorf("%s: %v", name, took)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 4*uint64(size) {
			t.Errorf("%s: %d bytes allocated", name, n)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for name, statement := range map[string]string{
		"begin": "BEGIN",
		"alter": "ALTER TABLE `shop`.`users` ADD COLUMN `name` VARCHAR(100) NOT NULL DEFAULT 'nobody' COMMENT 'it''s', ALGORITHM=INSTANT",
		"rows":  "INSERT INTO t VALUES " + strings.Repeat("('x'),", 1<<20),
		"long":  "ALTER TABLE t " + strings.Repeat("ADD x INT DEFAULT 'x', ", 1<<16),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(statement)))
			b.ReportAllocs()
			for b.Loop() {
				Read(statement, "shop")
			}
		})
	}
}
