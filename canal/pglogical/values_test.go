package pglogical

import (
	"fmt"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// sample is a value of a type: its SQL, and the text that arrives. If it is exact, a Go program has
// the same text.
type sample struct {
	kind, sql, text string
	exact           bool
}

var samples = []sample{
	{"SMALLINT", "-7", "-7", true}, {"INT", "42", "42", true}, {"BIGINT", "9223372036854775807", "9223372036854775807", true},
	{"NUMERIC(10,2)", "1.5", "1.50", true}, {"NUMERIC", "'NaN'", "NaN", true}, {"NUMERIC", "12345678901234567890.000", "12345678901234567890.000", true},
	{"TEXT", "'ö ''x'", "ö 'x", true}, {"TEXT", "''", "", true}, {"VARCHAR(10)", "'ab '", "ab ", true}, {"NAME", "'ab'", "ab", true}, {`"char"`, "'a'", "a", true},
	{"CHAR(4)", "'abcd'", "abcd", true}, {"CHAR(4)", "'ab'", "ab  ", false},
	{"UUID", "'550E8400-E29B-41D4-A716-446655440000'", "550e8400-e29b-41d4-a716-446655440000", true},
	{"BOOL", "true", "true", true}, {"BOOL", "false", "false", true},
	{"BYTEA", `'\x00ff61'`, "\x00\xffa", true}, {"BYTEA", "''", "", true},
	{"mood", "'very happy'", "very happy", true}, {"short", "'ab'", "ab", true}, {"shorter", "'ab'", "ab", true}, {"feeling", "'sad'", "sad", true}, {"days", "'2026-01-02'", "2026-01-02", false},
	{"mood[]", "'{sad}'", "{sad}", false}, {"INT[]", "'{1,NULL}'", "{1,NULL}", false}, {"pair", "'(1,a)'", "(1,a)", false},
	{"REAL", "0.1", "0.1", false}, {"DOUBLE PRECISION", "1e100", "1e+100", false},
	{"DATE", "'2026-01-02'", "2026-01-02", false}, {"TIMESTAMP", "'2026-01-02 03:04:05.6'", "2026-01-02 03:04:05.6", false}, {"TIMESTAMPTZ", "'2026-01-02 03:04:05+02'", "2026-01-02 01:04:05+00", false}, {"TIME", "'03:04'", "03:04:00", false}, {"INTERVAL", "'1 day 2 hours'", "1 day 02:00:00", false},
	{"JSON", `'{"a":1}'`, `{"a":1}`, false}, {"JSONB", `'{"a":1}'`, `{"a": 1}`, false}, {"INET", "'10.0.0.1'", "10.0.0.1", false}, {"BIT(3)", "B'101'", "101", false}, {"INT4RANGE", "'[1,3)'", "[1,3)", false}, {"XML", "'<a/>'", "<a/>", false}, {"POINT", "'(1,2)'", "(1,2)", false},
}

// Values have the text that Go programs have, or are not exact. The settings of the database do not
// change that.
func TestValuesOfAllTypes(t *testing.T) {
	x := shared(t)
	x.Do("ALTER DATABASE "+x.name+" SET datestyle = 'German'", "ALTER DATABASE "+x.name+" SET timezone = 'Asia/Tokyo'",
		"ALTER DATABASE "+x.name+" SET bytea_output = 'escape'",
		"ALTER DATABASE "+x.name+" SET intervalstyle = 'iso_8601'", "ALTER DATABASE "+x.name+
			" SET extra_float_digits = -3", "ALTER DATABASE "+x.name+" SET client_encoding = 'LATIN1'",
		"CREATE TYPE mood AS ENUM ('sad', 'very happy')", "CREATE DOMAIN short AS VARCHAR(5)",
		"CREATE DOMAIN shorter AS short CHECK (length(VALUE) < 4)", "CREATE DOMAIN feeling AS mood",
		"CREATE DOMAIN days AS DATE", "CREATE TYPE pair AS (a INT, b TEXT)")
	columns, values, nulls := "", "", ""
	for i, s := range samples {
		columns += fmt.Sprintf(", c%d %s", i, s.kind)
		values += ", " + s.sql
		nulls += ", NULL"
	}
	x.Do("CREATE TABLE types (id INT PRIMARY KEY" + columns + ")")
	l := x.Listen(x.source(), x.Need([]string{"types", "id"}))
	x.Do("INSERT INTO types VALUES (1"+values+")", "INSERT INTO types VALUES (2"+nulls+")")
	all := l.Changes(2)
	for i, s := range samples {
		v := all[0].After.Get(fmt.Sprint("c", i))
		if v.Text() != s.text || v.Exact() != s.exact || !v.Known() || v.IsNull() {
			t.Errorf("%s %s: %q, exact: %v", s.kind, s.sql, v.Text(), v.Exact())
		}
		if v := all[1].After.Get(fmt.Sprint("c", i)); !v.IsNull() {
			t.Errorf("%s: %v", s.kind, v)
		}
	}
}

// Exact texts are those that database/sql returns for a string.
func TestExactTextsAreThoseOfGo(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TYPE mood AS ENUM ('sad', 'very happy')", "CREATE DOMAIN short AS VARCHAR(5)",
		"CREATE DOMAIN shorter AS short", "CREATE DOMAIN feeling AS mood")
	for _, s := range samples {
		if s.exact {
			if got := x.Ask(fmt.Sprintf("SELECT (%s)::%s", s.sql, s.kind)); got != s.text {
				t.Errorf("%s: %q, want %q", s.kind, got, s.text)
			}
		}
	}
}

// What cannot be read is unknown.
func TestUnreadableValues(t *testing.T) {
	for _, v := range []event.Value{boolean([]byte("x")), bytea(nil), bytea([]byte(`\x0`)), bytea([]byte("ab")),
		bytea([]byte(`\xzz`))} {
		if v.Known() {
			t.Errorf("%q", v.Text())
		}
	}
}
