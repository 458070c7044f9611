package mysqlbinlog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// follows has a Consumer of the table a invalidate a loader whose keys are the values of a column,
// as the client shows them.
func (w *world) follows(column string) (*cacheaside.Loader[string, string], *canal.Consumer) {
	w.Helper()
	quiet := func(o *Options) { o.Logger = slog.New(slog.DiscardHandler) }
	return w.followsBy("CONVERT("+column+" USING utf8mb4) = ?", column, w.source(quiet))
}

// followsBy is follows with a loader's condition, and a Source.
func (w *world) followsBy(where, column string, source *Source) (*cacheaside.Loader[string, string], *canal.Consumer) {
	w.Helper()
	cache := w.cache(testenv.SharedRedis(w).Client(w))
	load := func(ctx context.Context, key string) (v string, err error) {
		err = w.DB.QueryRowContext(ctx, "SELECT CAST(id AS CHAR) FROM a WHERE "+where, key).Scan(&v)
		return v, err
	}
	l, err := cacheaside.NewLoader(cache, "row", load, nil)
	w.Check(err)
	c, err := canal.NewConsumer(cache, source, canal.NewFileCheckpoint(w.TempDir()+"/checkpoint"),
		[]canal.Binding{canal.Bind(l, w.Schema, "a",
			canal.TextColumn[string](column))}, &canal.Options{Logger: slog.New(slog.DiscardHandler)})
	w.Check(err)
	w.Consume(c)
	return l, c
}

// moved fails if a key that a statement has made is still absent to a reader that had asked for it
// before.
func (w *world) moved(column, key string, statements ...string) {
	w.Helper()
	l, c := w.follows(column)
	if _, err := l.Get(w.Context(), key); !errors.Is(err, cacheaside.ErrNotFound) { // its absence is cached
		w.Fatal(err)
	}
	before := c.Stats().Changes
	w.one(statements...)
	testenv.Eventually(w, "it is consumed", func() bool { return c.Stats().Changes > before })
	if v, err := l.Get(w.Context(), key); v != "1" {
		w.Errorf("key %q of column %s is still %q, %v", key, column, v, err)
	}
	if s := c.Stats(); s.Misunderstood == 0 {
		w.Error("nothing was counted as not understood")
	}
}

// appears fails if a key that a statement has inserted is still cached as missing for a reader that
// had asked for any of its texts.
func (w *world) appears(l *cacheaside.Loader[string, string], c *canal.Consumer, texts []string, statement string) {
	w.Helper()
	for _, text := range texts {
		if _, err := l.Get(w.Context(), text); !errors.Is(err, cacheaside.ErrNotFound) { // its absence is cached
			w.Fatal(err)
		}
	}
	before := c.Stats().Changes
	w.one(statement)
	testenv.Eventually(w, "it is consumed", func() bool { return c.Stats().Changes > before })
	for _, text := range texts {
		if v, err := l.Get(w.Context(), text); v != "1" {
			w.Errorf("key %q is still %q, %v", text, v, err)
		}
	}
}

// A key that becomes what cannot be read has not stayed what it was.
func TestKeysThatCannotBeRead(t *testing.T) { each(t, keysThatCannotBeRead) }

func keysThatCannotBeRead(x *world) {
	for name, c := range map[string]struct{ column, from, to string }{
		"cp1251, from NULL":  {"VARCHAR(20) CHARACTER SET cp1251", "NULL", "абв"},
		"cp1251, from ASCII": {"VARCHAR(20) CHARACTER SET cp1251", "'abc'", "абв"},
		"gbk, from ASCII":    {"VARCHAR(20) CHARACTER SET gbk", "'abc'", "中"},
	} {
		x.Run(name, func(t *testing.T) {
			y := worldOn(t, x.server)
			y.Do("CREATE TABLE a (id INT PRIMARY KEY, e "+c.column+")", "INSERT INTO a VALUES (1, "+c.from+")")
			y.moved("e", c.to, "SET NAMES utf8mb4", "UPDATE a SET e = '"+c.to+"'")
		})
	}
	if x.mysql() { // MariaDB logs whole documents
		x.Run("a part of a document", func(t *testing.T) {
			y := worldOn(t, x.server)
			y.Do("CREATE TABLE a (id INT PRIMARY KEY, j JSON)",
				`INSERT INTO a VALUES (1, '{"a": 1, "b": "long enough to be worth a part"}')`)
			y.moved("j", `{"a": 2, "b": "long enough to be worth a part"}`,
				"SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
				"UPDATE a SET j = JSON_SET(j, '$.a', 2)", "SET SESSION binlog_row_value_options = DEFAULT")
		})
	}
}

// The log has numbers and documents in another way than the client shows them. No key is made of
// them.
func TestKeysOfDoublesAndJSON(t *testing.T) { each(t, keysOfDoublesAndJSON) }

func keysOfDoublesAndJSON(x *world) {
	kinds := map[string][2]string{
		"DOUBLE":       {"1234567.25", "1234567.25"},
		"DOUBLE(10,2)": {"1.5", "1.50"},
		"FLOAT":        {"16777216", "16777200"},
	}
	if x.mysql() { // MariaDB's JSON is a text
		kinds["JSON"] = [2]string{`'{"a":[1,1.5e20]}'`, `{"a": [1, 1.5e20]}`}
	}
	for kind, values := range kinds {
		x.Run(strings.NewReplacer("(", " ", ")", "", ",", " ").Replace(kind), func(t *testing.T) {
			y := worldOn(t, x.server)
			y.Do("CREATE TABLE a (id INT PRIMARY KEY, k " + kind + ")")
			y.moved("k", values[1], "INSERT INTO a VALUES (1, "+values[0]+")")
		})
	}
}

// A client may show a number with zeros that the log does not have. The key is found afterwards
// under each text that was cached as missing.
func TestKeysThatAreFilledWithZeros(t *testing.T) { each(t, keysThatAreFilledWithZeros) }

func keysThatAreFilledWithZeros(x *world) {
	type filled struct {
		kind, value string
		texts       []string
		certain     bool // nothing is counted as not understood
	}
	all := []filled{
		{"DECIMAL(8,2) ZEROFILL", "4.2", []string{"000004.20"}, false},
		{"DECIMAL(5,0) ZEROFILL", "42", []string{"00042"}, false},
		{"DECIMAL(8,2) UNSIGNED", "4.2", []string{"4.20"}, true},
		{"INT(6) ZEROFILL", "42", []string{"42", "000042"}, false},
		{"BIGINT ZEROFILL", "42", []string{"42", "00000000000000000042"}, false},
		{"INT UNSIGNED", "42", []string{"42"}, true},
		{"YEAR", "0", []string{"0000"}, false},
		{"YEAR", "2026", []string{"2026"}, true},
	}
	if !x.mysql() {
		all = append(all, filled{"YEAR(2)", "2005", []string{"05", "2005"}, false})
	}
	for _, f := range all {
		x.Run(strings.NewReplacer("(", " ", ")", "", ",", " ").Replace(f.kind+" "+f.value), func(t *testing.T) {
			y := worldOn(t, x.server)
			y.Do("CREATE TABLE a (id INT PRIMARY KEY, k " + f.kind + ")")
			l, c := y.followsBy("k = ?", "k", y.source())
			y.appears(l, c, f.texts, "INSERT INTO a VALUES (1, "+f.value+")")
			if n := c.Stats().Misunderstood; (n == 0) != f.certain {
				t.Errorf("%d were not understood", n)
			}
		})
	}
}

// A user who may not see the table does not know whether a number is filled with zeros. Keys that
// are numbers do not depend on it.
func TestZerosOfWhoMayNotSeeThem(t *testing.T) { each(t, zerosOfWhoMayNotSeeThem) }

func zerosOfWhoMayNotSeeThem(x *world) {
	x.Do("CREATE USER blindz", "GRANT REPLICATION SLAVE ON *.* TO blindz")
	x.Cleanup(func() { x.Do("DROP USER blindz") })
	blind := func(o *Options) { o.User = "blindz" }
	x.Do("CREATE TABLE a (id BIGINT UNSIGNED PRIMARY KEY, k DECIMAL(8,2) ZEROFILL)")
	l, c := x.followsBy("k = ?", "k", x.source(blind))
	x.appears(l, c, []string{"000004.20"}, "INSERT INTO a VALUES (1, 4.2)")
	if c.Stats().Misunderstood == 0 {
		x.Error("nothing was counted as not understood")
	}
	got := x.Listen(x.source(blind), x.Need([]string{"a", "id"}))
	x.Do("INSERT INTO a VALUES (18446744073709551615, 4.2)")
	v := got.Changes(1)[0].After.Get("id")
	if n, err := v.Uint64(); n != 1<<64-1 || err != nil || v.Exact() || v.Text() != "18446744073709551615" {
		x.Errorf("%d, %v, exact %v, %q", n, err, v.Exact(), v.Text())
	}
	if k, ok, err := canal.IntColumn[uint64]("id").Key(got.Changes(1)[0].After); k != 1<<64-1 || !ok || err != nil {
		x.Error(k, ok, err)
	}
}

// With PAD_CHAR_TO_FULL_LENGTH a client sees the blanks at the end of a CHAR, which the log does
// not have.
func TestKeysOfPaddedChar(t *testing.T) { each(t, keysOfPaddedChar) }

func keysOfPaddedChar(x *world) {
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, k CHAR(4))")
	x.set("sql_mode", "PAD_CHAR_TO_FULL_LENGTH")
	l, c := x.followsBy("k = TRIM(?)", "k", x.source())
	x.appears(l, c, []string{"x   "}, "INSERT INTO a VALUES (1, 'x')")
}

// The rows that a constraint changes are in the log of MySQL 9.7, and in no other: there, a warning
// names the constraint.
func TestCascades(t *testing.T) { each(t, cascades) }

func cascades(x *world) {
	x.Do("CREATE TABLE parent (id INT PRIMARY KEY)", "INSERT INTO parent VALUES (1), (2)",
		"CREATE TABLE child (id INT PRIMARY KEY, p INT, CONSTRAINT of_parent FOREIGN KEY (p) REFERENCES parent (id) "+
			"ON DELETE CASCADE ON UPDATE CASCADE)",
		"INSERT INTO child VALUES (10, 1), (20, 2)")
	var log testenv.Log
	l := x.Listen(x.source(func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) }),
		x.Need([]string{"child", "id"}))
	x.Do("DELETE FROM parent WHERE id = 1", "UPDATE parent SET id = 3 WHERE id = 2",
		"INSERT INTO child VALUES (30, NULL)")
	if x.mysql() {
		l.Want("delete child: 10 1", "update child: 20 2 -> 20 3", "insert child: 30 NULL")
	} else {
		l.Want("insert child: 30 NULL")
	}
	if warned := strings.Contains(log.String(), "of_parent of "+x.Schema+".child"); warned == x.mysql() {
		x.Errorf("it has logged: %s", log.String())
	}
}
