package bloom

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/bloom/internal/fill"
	"github.com/cacheaside/cacheaside/bloom/internal/sqltable"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestSourceThatIgnoresAfter: and fails at one row, which no further try gets over. It is given up,
// and each key is counted once.
func TestSourceThatIgnoresAfter(t *testing.T) {
	broken := errors.New("the row cannot be read")
	for name, from := range map[string]func(keys []string, after string, asked int) []string{
		"ignores it":              func(keys []string, _ string, _ int) []string { return keys },
		"ignores it, at some row": func(keys []string, _ string, asked int) []string { return keys[:2000+500*(asked%2)] }, // or what was added is
		"includes it":             func(keys []string, after string, _ int) []string { return keys[max(0, slices.Index(keys, after)):] },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				keys, asked, yielded := numbered(3000), 0, 0
				source := func(_ context.Context, after string) iter.Seq2[string, error] {
					asked++
					return func(yield func(string, error) bool) {
						for _, key := range from(keys, after, asked) {
							if yielded++; !yield(key, nil) {
								return
							}
						}
						yield("", broken)
					}
				}
				report, err := rebuild(ctx, &fake{}, source, &RebuildOptions{Settle: -1, batchSize: 500})
				if !errors.Is(err, broken) || asked > 1+fill.MaxFailures || report.Keys > 3000+fill.MaxFailures {
					t.Errorf("asked %d times, for %d keys in all; it reports %d of 3000: %v", asked, yielded,
						report.Keys, err)
				}
			})
		})
	}
}

// TestTableIsReadAsAWhole: text of a column that holds integers, which SQLite does not compare with
// text, is read as a whole, or not at all.
func TestTableIsReadAsAWhole(t *testing.T) {
	const rows = 5*sqltable.PageRows + 7
	numbers := func(db *sql.DB, table, expression string) {
		run(t, db, fmt.Sprintf("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) INSERT "+
			"INTO %s SELECT %s FROM n", rows, table, expression))
	}
	for name, set := range map[string]struct {
		create []string
		value  string
		whole  bool
	}{
		"typeless, integers":       {[]string{"CREATE TABLE t (id PRIMARY KEY)"}, "i", false},
		"typeless, text":           {[]string{"CREATE TABLE t (id PRIMARY KEY)"}, "'user' || i", true},
		"typeless, numerals":       {[]string{"CREATE TABLE t (id PRIMARY KEY)"}, "CAST(i AS TEXT)", true},
		"typeless, integers first": {[]string{"CREATE TABLE t (id PRIMARY KEY)"}, "CASE WHEN i < 2500 THEN i ELSE 'user' || i END", false},
		"typeless, a few integers": {[]string{"CREATE TABLE t (id PRIMARY KEY)"}, "CASE WHEN i < 500 THEN i ELSE 'user' || i END", true},
		"typeless, real":           {[]string{"CREATE TABLE t (id PRIMARY KEY)"}, "i + 0.5", false},
		"blobs":                    {[]string{"CREATE TABLE t (id BLOB PRIMARY KEY)"}, "CAST(i AS BLOB)", false},
		"integers":                 {[]string{"CREATE TABLE t (id INTEGER PRIMARY KEY)"}, "i", true},
		"a view of integers":       {[]string{"CREATE TABLE s (id INTEGER PRIMARY KEY)", "CREATE VIEW t AS SELECT id FROM s"}, "i", true},
		"a view that computes":     {[]string{"CREATE TABLE s (id INTEGER PRIMARY KEY)", "CREATE VIEW t AS SELECT id + 0 AS id FROM s"}, "i", false},
		"times":                    {[]string{"CREATE TABLE t (id DATETIME PRIMARY KEY)"}, "datetime(1700000000 + i, 'unixepoch')", false},
	} {
		t.Run(name, func(t *testing.T) {
			db := sqlite.Open(t)
			for _, statement := range set.create {
				run(t, db, statement)
			}
			into := "t"
			if len(set.create) > 1 {
				into = "s"
			}
			numbers(db, into, set.value)
			read := func(source Source, after string) (keys []string, err error) {
				for key, err := range source(t.Context(), after) {
					if err != nil {
						return keys, err
					}
					keys = append(keys, key)
				}
				return keys, nil
			}
			source := Table[string](db, "t", "id")
			keys, err := read(source, "")
			if err == nil && len(keys) != rows || set.whole != (err == nil) ||
				err != nil && !errors.Is(err, sqltable.ErrOrder) {
				t.Fatalf("%d keys of %d: %v", len(keys), rows, err)
			}
			if err != nil {
				keys = []string{"4000"}
			}
			for _, after := range []string{keys[0], keys[len(keys)/2]} { // as where it is tried again
				rest, err := read(Table[string](db, "t", "id"), after)
				if behind := rows - 1 - slices.Index(keys, after); err == nil && (len(rest) != behind || !set.whole) {
					t.Errorf("behind %s: %d keys of %d, and no error", after, len(rest), behind)
				} else if err != nil && set.whole && !strings.Contains(name, "a few integers") {
					// None of these integers sorts behind text.
					t.Errorf("behind %s: %v", after, err)
				}
			}
		})
	}
}

// logged has slog's default logger write to where it can be read.
func logged(t *testing.T) func() string {
	var mu sync.Mutex
	var b bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}), nil)))
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestMaintainTells: of a table that is not there, by itself.
func TestMaintainTells(t *testing.T) {
	db := sqlite.Open(t)
	run(t, db, "CREATE TABLE users (id INTEGER PRIMARY KEY)")
	text := logged(t)
	l, err := NewLocal(1000, 0.01)
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Maintain(ctx, Table[int64](db, "usres", "id"), nil) }()
	testenv.Eventually(t, "it fails",
		func() bool { return strings.Contains(text(), "usres") || l.Stats().Failures > 1 })
	if !strings.Contains(text(), "usres") {
		t.Errorf("it logs %q", text())
	}
	cancel()
	<-ended
}
