// Package sourcetest tests implementations of canal.Source on real servers.
package sourcetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A World is a test and its database. Its methods end the test if they fail.
type World struct {
	*testing.T
	DB     *sql.DB
	Schema string // of tables that are named without one
}

// Check ends the test if there is an error.
func (w *World) Check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// Do executes statements.
func (w *World) Do(statements ...string) {
	w.Helper()
	for _, s := range statements {
		if _, err := w.DB.ExecContext(context.Background(), s); err != nil {
			w.Fatalf("%.200s: %v", s, err)
		}
	}
}

// Ask returns the text of the only column of the only row.
func (w *World) Ask(query string, args ...any) (text string) {
	w.Helper()
	w.Check(w.DB.QueryRowContext(context.Background(), query, args...).Scan(&text))
	return text
}

// Table returns the table of a name, which may begin with a schema and a dot.
func (w *World) Table(name string) event.Table {
	if schema, table, ok := strings.Cut(name, "."); ok {
		return event.Table{Schema: schema, Name: table}
	}
	return event.Table{Schema: w.Schema, Name: name}
}

// Need returns a Need of tables. Each is a name for Table, and the columns.
func (w *World) Need(tables ...[]string) event.Need {
	n := event.Need{Tables: map[event.Table][]string{}}
	for _, t := range tables {
		n.Tables[w.Table(t[0])] = t[1:]
	}
	return n
}

// Text returns a change with the columns in the order of the table, for example "insert a: 1 x" or
// "update a: 1 x -> 1 ?". It names the schema of a table only if that is not w.Schema.
func (w *World) Text(c event.Change) string {
	row := func(r event.Row) (s string) {
		for _, name := range r.Columns().Names() {
			switch v := r.Get(name); {
			case !v.Known():
				s += " ?"
			case v.IsNull():
				s += " NULL"
			default:
				s += " " + v.Text()
			}
		}
		return s
	}
	s := fmt.Sprint(c.Kind, " ")
	if c.Schema != w.Schema && c.Schema+c.Table != "" { // otherwise it concerns all tables
		s += c.Schema + "."
	}
	s += c.Table
	if c.Unread != nil {
		s += " unread"
	}
	if c.Before.Exists() || c.After.Exists() {
		s += ":" + row(c.Before)
	}
	if c.After.Exists() {
		if c.Before.Exists() {
			s += " ->"
		}
		s += row(c.After)
	}
	return s
}

// IsSetup fails unless err is an ErrSetup that contains the names.
func (w *World) IsSetup(err error, names ...string) {
	w.Helper()
	if !errors.Is(err, canal.ErrSetup) {
		w.Fatalf("%v is no ErrSetup", err)
	}
	for _, n := range names {
		if !strings.Contains(err.Error(), n) {
			w.Fatalf("%q does not say %q", err, n)
		}
	}
}

// Consume runs a Consumer until the test ends. It returns when the Consumer has begun.
func (w *World) Consume(c *canal.Consumer) {
	w.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	w.Cleanup(func() {
		stop()
		w.Check(<-done)
	})
	testenv.Eventually(w, "the Consumer has begun",
		func() bool { return c.Stats().Position != "" && c.Stats().Lag >= 0 })
}
