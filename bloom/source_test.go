package bloom

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/bloom/internal/sqltable"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// databases run a test on both.
func databases(t *testing.T, test func(t *testing.T, db *sql.DB, mysql bool)) {
	t.Run("sqlite", func(t *testing.T) { test(t, sqlite.Open(t), false) })
	t.Run("mariadb", func(t *testing.T) { test(t, testenv.SharedMariaDB(t).DB(t), true) })
}

func run(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

func all(t testing.TB, s Source, after string) (keys []string) {
	t.Helper()
	for key, err := range s(t.Context(), after) {
		must(t, err)
		keys = append(keys, key)
	}
	return keys
}

func failure(t testing.TB, s Source, after string) error {
	t.Helper()
	for _, err := range s(t.Context(), after) {
		if err != nil {
			return err
		}
	}
	return nil
}

// insert fills a table with one column, many rows at once.
func insert(t testing.TB, db *sql.DB, table string, values []string) {
	t.Helper()
	for part := range slices.Chunk(values, 1000) {
		run(t, db, "INSERT INTO "+table+" VALUES ("+strings.Join(part, "),(")+")")
	}
}

func TestTable(t *testing.T) {
	databases(t, func(t *testing.T, db *sql.DB, mysql bool) {
		run(t, db, "CREATE TABLE numbers (id BIGINT PRIMARY KEY)")
		run(t, db, "CREATE TABLE names (name VARCHAR(40) PRIMARY KEY)")
		var numbers, names []string
		for i := range 5*sqltable.PageRows + 200 {
			numbers = append(numbers, strconv.FormatInt(int64(i-5)*(1<<40+3), 10))
			names = append(names, fmt.Sprintf("'näme %d'", i))
		}
		numbers = append(numbers, "9223372036854775807")
		insert(t, db, "numbers", numbers)
		insert(t, db, "names", names)
		ids := Table[int64](db, "numbers", "id")
		if got := all(t, ids, ""); !slices.Equal(got, numbers) {
			t.Fatalf("%d of %d", len(got), len(numbers))
		}
		if got := all(t, ids, numbers[4900]); !slices.Equal(got, numbers[4901:]) {
			t.Fatalf("%d behind the 4900th", len(got))
		}
		text := Table[string](db, "names", "name")
		got := all(t, text, "")
		if again := all(t, text, got[5100]); !slices.Equal(again, got[5101:]) {
			t.Fatalf("%d behind the 5100th", len(again))
		}
		for i, name := range got {
			got[i] = "'" + name + "'"
		}
		slices.Sort(got)
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Fatalf("%d of %d names", len(got), len(names))
		}
		for key := range ids(t.Context(), "") { // a reader that stops early leaves nothing open
			_ = key
			break
		}
		if n := db.Stats().InUse; n != 0 {
			t.Fatalf("%d connections in use", n)
		}
	})
}

// TestTableOfMySQL: what only MySQL has.
func TestTableOfMySQL(t *testing.T) {
	m := testenv.SharedMariaDB(t)
	db := m.DB(t)
	run(t, db, "CREATE TABLE counts (n BIGINT UNSIGNED ZEROFILL PRIMARY KEY)")
	run(t, db, "INSERT INTO counts VALUES (7), (18446744073709551615)")
	if got := all(t, Table[uint64](db, m.Database(t)+".counts", "n"), ""); !slices.Equal(got,
		[]string{"7", "18446744073709551615"}) {
		t.Error(got)
	}
	if failure(t, Table[int64](db, "counts", "n"), "") == nil {
		t.Error("a number that no int64 holds")
	}
	run(t, db, "CREATE TABLE ids (id BINARY(2) PRIMARY KEY)")
	insert(t, db, "ids", func() (all []string) {
		for i := range 1 << 14 {
			all = append(all, fmt.Sprintf("x'%04x'", i*4+1))
		}
		return all
	}())
	if got := all(t, Table[string](db, "ids", "id"), ""); len(got) != 1<<14 || got[0] != "\x00\x01" ||
		got[1<<14-1] != "\xff\xfd" {
		t.Errorf("%d binary ids", len(got))
	}
	run(t, db, "CREATE TABLE words (word VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY)")
	run(t, db, "INSERT INTO words VALUES ('b'), ('A'), ('Z'), ('ö'), ('c')")
	words := Table[string](db, "words", "word")
	got := all(t, words, "")
	for i, word := range got { // the order is that of the comparison
		if rest := all(t, words, word); !slices.Equal(rest, got[i+1:]) {
			t.Errorf("behind %s: %v of %v", word, rest, got)
		}
	}
}

// TestTableOfAnotherType: a column that sorts otherwise than Table was configured for hides no
// rows, and does not make the read endless.
func TestTableOfAnotherType(t *testing.T) {
	databases(t, func(t *testing.T, db *sql.DB, mysql bool) {
		run(t, db, "CREATE TABLE words (word VARCHAR(40) PRIMARY KEY)")
		run(t, db, "INSERT INTO words VALUES ('9'), ('10')")
		if err := failure(t, Table[int64](db, "words", "word"), ""); !errors.Is(err, sqltable.ErrOrder) {
			t.Error(err)
		}
		run(t, db, "INSERT INTO words VALUES ('a private word')")
		if err := failure(t, Table[int](db, "words", "word"), "9"); err != nil &&
			strings.Contains(err.Error(), "private") {
			t.Error(err)
		}
		if err := failure(t, Table[int](db, "words", "word"), "a private cursor"); err == nil ||
			strings.Contains(err.Error(), "private") {
			t.Error(err)
		}
		if !mysql {
			run(t, db, "CREATE TABLE blobs (id BLOB PRIMARY KEY)")
			run(t, db, fmt.Sprintf("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) "+
				"INSERT INTO blobs SELECT CAST(i AS BLOB) FROM n", sqltable.PageRows+1))
			if err := failure(t, Table[string](db, "blobs", "id"), ""); !errors.Is(err, sqltable.ErrOrder) {
				t.Error(err)
			}
		}
	})
}

// TestTableOfWhatMySQLSortsByNumber: and compares by text: reading behind a key would hide rows.
func TestTableOfWhatMySQLSortsByNumber(t *testing.T) {
	db := testenv.SharedMariaDB(t).DB(t)
	for _, kind := range []string{"ENUM", "SET"} {
		run(t, db, "CREATE TABLE "+kind+"s (id "+kind+"('z','y','a') PRIMARY KEY)")
		run(t, db, "INSERT INTO "+kind+"s VALUES ('z'), ('y'), ('a')")
		if err := failure(t, Table[string](db, kind+"s", "id"), ""); !errors.Is(err, sqltable.ErrOrder) {
			t.Error(kind, err)
		}
	}
}

func TestTableIsChecked(t *testing.T) {
	db := sqlite.Open(t)
	for _, names := range [][2]string{{"", "id"}, {"users", ""}, {"users`", "id"}, {"users", "id; DROP TABLE users"},
		{"a.b.c", "id"}, {"a.", "id"}, {strings.Repeat("x", 65), "id"}} {
		if failure(t, Table[int](db, names[0], names[1]), "") == nil {
			t.Errorf("%q", names)
		}
	}
	if failure(t, Table[int]((*sql.DB)(nil), "users", "id"), "") == nil ||
		failure(t, Table[int](nil, "users", "id"), "") == nil {
		t.Error("no database")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range Table[int](db, "users", "id")(ctx, "") {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestKeys(t *testing.T) {
	s := Keys("b", "", "c", "a", "b")
	for after, want := range map[string][]string{"": {"", "a", "b", "c"}, "a": {"b", "c"}, "c": nil, "bb": {"c"}} {
		if got := all(t, s, after); !slices.Equal(got, want) {
			t.Errorf("behind %q: %q", after, got)
		}
	}
	for range Keys("a", "b")(t.Context(), "") {
		break
	}
}
