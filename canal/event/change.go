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

// Kind is what a Change has done.
type Kind uint8

const (
	// Insert has put a row there: After.
	Insert Kind = iota + 1
	// Update has made Before into After.
	Update
	// Delete has removed a row: Before.
	Delete
	// Truncate has removed all rows of a table.
	Truncate
	// Alter is DDL: the table was made, dropped, renamed or altered.
	Alter
	// Read is a row that was there already, as a snapshot has it: After.
	Read
	// Replace says that a table may have other rows than before, of which nothing was told: another
	// was renamed to it, or exchanged for it, or what was done to it could not be read.
	Replace
)

var kinds = [...]string{"", "insert", "update", "delete", "truncate", "alter", "read", "replace"}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kinds) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kinds[k]
}

// Change is what was done to one row, or to a table. As text it shows no values.
type Change struct {
	// Schema and Table name the table as the server does. Of Truncate, Alter and Replace they may
	// be empty: all tables then, or all of the schema.
	Schema, Table string
	Kind          Kind

	// Before and After are the row, each with those columns that the database has told of; none
	// where there was, or is, no row. A change that lacks one that its Kind has is not understood,
	// as when a column is not known. Columns of After that its image leaves out are Omitted: they
	// are as they were.
	Before, After Row

	// Unread is why what was done could not be read, of Replace; nil if it could.
	Unread error

	// Time is when it was committed, by the database's clock, to the second or better. Zero: not
	// known.
	Time time.Time
}

// String names the table and the kind.
func (c Change) String() string {
	return fmt.Sprintf("%s of %s.%s", c.Kind, c.Schema, c.Table)
}

// Format is String, whatever is asked for.
func (c Change) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue is String.
func (c Change) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Columns are the names of a table's columns, in an order. Rows share them: make them once for each
// shape of a table.
type Columns struct {
	names []string
	lower []string
}

// NewColumns keeps names. Upper and lower case are the same, as in MySQL.
func NewColumns(names ...string) *Columns {
	c := &Columns{names: slices.Clone(names), lower: make([]string, len(names))}
	for i, n := range names {
		c.lower[i] = strings.ToLower(n)
	}
	return c
}

// Names are the columns, in their order; they must not be changed.
func (c *Columns) Names() []string {
	if c == nil {
		return nil
	}
	return c.names
}

// at is where a column is, -1 if it is not there; its name is in lower case.
func (c *Columns) at(lower string) int {
	if c == nil {
		return -1
	}
	return slices.Index(c.lower, lower)
}

// Row is the values of a row's columns. The zero Row is none.
type Row struct {
	columns *Columns
	values  []Value
}

// NewRow keeps values, one for each of the columns in their order.
func NewRow(columns *Columns, values []Value) (Row, error) {
	if columns == nil || len(values) != len(columns.names) {
		return Row{}, fmt.Errorf("canal: %d values for %d columns", len(values), len(columns.Names()))
	}
	return Row{columns: columns, values: values}, nil
}

// Columns are those of its table.
func (r Row) Columns() *Columns { return r.columns }

// Format shows whether there is a row, and how many columns it has.
func (r Row) Format(f fmt.State, _ rune) {
	if !r.Exists() {
		_, _ = io.WriteString(f, "no row")
		return
	}
	_, _ = fmt.Fprintf(f, "a row of %d columns", len(r.values))
}

// Exists tells whether there is a row.
func (r Row) Exists() bool { return r.columns != nil }

// Get is what a column of this name holds: upper and lower case are the same. If there is no such
// column, it is not known.
func (r Row) Get(column string) Value {
	if i := r.columns.at(strings.ToLower(column)); i >= 0 {
		return r.values[i]
	}
	return Value{}
}

// All goes through the columns, in their order, with what each of them holds.
func (r Row) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i, v := range r.values {
			if !yield(r.columns.names[i], v) {
				return
			}
		}
	}
}

// size is how many bytes its texts have.
func (r Row) size() (n int) {
	for i := range r.values {
		switch v := reflect.ValueOf(r.values[i].v); v.Kind() {
		case reflect.String, reflect.Slice:
			n += v.Len()
		}
	}
	return n
}

// Over is r with what its image leaves out (Omitted) taken from before, the row as it was. Values
// that cannot be read may have changed, and are left as they are.
func (r Row) Over(before Row) Row {
	if !r.Exists() || !before.Exists() || !slices.ContainsFunc(r.values, Value.omitted) {
		return r
	}
	values := slices.Clone(r.values)
	for i, v := range values {
		if v.omitted() {
			values[i] = before.Get(r.columns.lower[i])
		}
	}
	return Row{columns: r.columns, values: values}
}
