package event

import (
	"fmt"
	"io"
	"iter"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of a Change.
type Kind uint8

const (
	// Insert added a row: After.
	Insert Kind = iota + 1
	// Update changed a row from Before to After.
	Update
	// Delete removed a row: Before.
	Delete
	// Truncate removed all rows of a table.
	Truncate
	// Alter is DDL that created, dropped, renamed or altered a table.
	Alter
	// Read is an existing row, read by a snapshot: After.
	Read
	// Replace means that a table may have other rows than before, and no changes were
	// delivered: another table was renamed to it or exchanged with it, or a change of it could
	// not be read.
	Replace
)

var kinds = [...]string{"", "insert", "update", "delete", "truncate", "alter", "read", "replace"}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kinds) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kinds[k]
}

// A Change is a change of one row, or of a table. Its text form contains no values.
type Change struct {
	// Schema and Table name the table as the server does. They may be empty for Truncate, Alter
	// and Replace: the change then concerns all tables, or all tables of the schema.
	Schema, Table string
	Kind          Kind

	// Before and After are the row before and after the change, with the columns that the
	// database logged. A Row that does not exist is the zero Row. If a row that the Kind requires
	// is missing, or a needed column is unknown, the Consumer does not understand the change.
	// Columns of After that are not in its row image are Omitted: they have not changed.
	Before, After Row

	// Unread is the reason why a change could not be read. Only a Replace has one.
	Unread error

	// Time is the commit time by the database's clock, with a precision of a second or better.
	// Zero means unknown.
	Time time.Time
}

// String returns the kind and the table.
func (c Change) String() string {
	return fmt.Sprintf("%s of %s.%s", c.Kind, c.Schema, c.Table)
}

// Format writes String for every verb and flag, so that values are never printed.
func (c Change) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue returns String.
func (c Change) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Columns is the ordered list of a table's column names. Rows share it: create one for each shape
// of a table.
type Columns struct {
	names []string
	lower []string
}

// NewColumns returns Columns with these names. Names are not case-sensitive, as in MySQL, unless
// two of them differ in case only, as PostgreSQL permits: see Row.Get.
func NewColumns(names ...string) *Columns {
	c := &Columns{names: slices.Clone(names), lower: make([]string, len(names))}
	for i, n := range names {
		c.lower[i] = strings.ToLower(n)
	}
	return c
}

// Names returns the names in order. The caller must not change them.
func (c *Columns) Names() []string {
	if c == nil {
		return nil
	}
	return c.names
}

// index returns the index of a column by its name, or -1 if there is none. A name in its exact
// case takes precedence. Without such a name, one that matches several columns in other cases
// matches none.
func (c *Columns) index(name string) int {
	if c == nil {
		return -1
	}
	if i := slices.Index(c.names, name); i >= 0 {
		return i
	}
	lower := strings.ToLower(name)
	i := slices.Index(c.lower, lower)
	if i >= 0 && slices.Contains(c.lower[i+1:], lower) {
		return -1
	}
	return i
}

// A Row contains the values of a row's columns. The zero Row means that there is no row.
type Row struct {
	columns *Columns
	values  []Value
}

// NewRow returns a Row with one value for each column, in order. It keeps the slice.
func NewRow(columns *Columns, values []Value) (Row, error) {
	if columns == nil || len(values) != len(columns.names) {
		return Row{}, fmt.Errorf("canal: %d values for %d columns", len(values), len(columns.Names()))
	}
	return Row{columns: columns, values: values}, nil
}

// Columns returns the columns of the row's table, or nil if there is no row.
func (r Row) Columns() *Columns { return r.columns }

// Format writes whether there is a row, and its number of columns, but no values.
func (r Row) Format(f fmt.State, _ rune) {
	if !r.Exists() {
		_, _ = io.WriteString(f, "no row")
		return
	}
	_, _ = fmt.Fprintf(f, "a row of %d columns", len(r.values))
}

// Exists reports whether there is a row.
func (r Row) Exists() bool { return r.columns != nil }

// Get returns the value of a column. The name is not case-sensitive, but a column with exactly this
// name takes precedence. If the column does not exist, or several match in other cases only, the
// Value is unknown.
func (r Row) Get(column string) Value {
	if i := r.columns.index(column); i >= 0 {
		return r.values[i]
	}
	return Value{}
}

// All iterates over the column names and values, in order.
func (r Row) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i, v := range r.values {
			if !yield(r.columns.names[i], v) {
				return
			}
		}
	}
}

// size returns the total length of the texts and bytes of the row.
func (r Row) size() (n int) {
	for i := range r.values {
		switch v := reflect.ValueOf(r.values[i].v); v.Kind() {
		case reflect.String, reflect.Slice:
			n += v.Len()
		}
	}
	return n
}

// Over returns r with each Omitted value replaced by the value of before, the row before the
// change. Values that cannot be read may have changed, so they stay unknown.
func (r Row) Over(before Row) Row {
	if !r.Exists() || !before.Exists() || !slices.ContainsFunc(r.values, Value.omitted) {
		return r
	}
	values := slices.Clone(r.values)
	for i, v := range values {
		if v.omitted() {
			values[i] = before.Get(r.columns.names[i])
		}
	}
	return Row{columns: r.columns, values: values}
}
