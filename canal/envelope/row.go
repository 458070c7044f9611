package envelope

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// row is a row while it is read.
type row struct {
	names  []string
	values []event.Value
}

// readRow reads the columns of a row. value returns the unknown Value for a column that it cannot
// read. Only Bindings that need that column then fail to understand the row.
func readRow(raw []byte, value func(column string, raw json.RawMessage) event.Value) (row, error) {
	all, err := object(raw)
	if err != nil {
		return row{}, err
	}
	r := row{names: make([]string, len(all)), values: make([]event.Value, len(all))}
	for i, m := range all {
		r.names[i], r.values[i] = m.name, value(m.name, m.value)
	}
	return r, nil
}

// before returns the row before the change, given the changed columns in old. ok is false if old
// cannot belong to r: it names columns that r does not have, or no column that differs. An UPDATE
// that changes nothing is not in the binary log.
func (r row) before(old row) (before row, ok bool) {
	before = row{r.names, slices.Clone(r.values)}
	for i, name := range old.names {
		found := slices.Index(r.names, name)
		if found < 0 {
			return row{}, false
		}
		ok = ok || !r.values[found].Equal(old.values[i])
		before.values[found] = old.values[i]
	}
	return before, ok
}

// shapes creates rows that share their Columns with the previous row of the message, if the names
// are the same.
type shapes struct {
	names   []string
	columns *event.Columns
}

func (s *shapes) row(r row) event.Row {
	if s.columns == nil || !slices.Equal(s.names, r.names) {
		s.names, s.columns = r.names, event.NewColumns(r.names...)
	}
	made, _ := event.NewRow(s.columns, r.values) // there is one value per column
	return made
}

// unknownRow returns a row that existed, but whose values are unknown. A Binding that needs the
// row's key counts the change as not understood.
func unknownRow() event.Row {
	var none shapes
	return none.row(row{names: []string{}})
}

// origin is the table and the commit time of a message.
type origin struct {
	schema, table string
	time          time.Time
}

var (
	errNoTable = errors.New("the message does not name its table")
	errNoType  = errors.New("type: unknown value")
)

func (o origin) change(kind event.Kind) event.Change {
	return event.Change{Schema: o.schema, Table: o.table, Kind: kind, Time: o.time}
}

// rowChange returns a change of a row.
func (o origin) rowChange(kind event.Kind, before, after event.Row) event.Change {
	c := o.change(kind)
	c.Before, c.After = before, after
	return c
}

// decode reads a message of the given program. read returns the changes in it.
func decode(program string, message []byte, read func(*record) ([]event.Change, error)) ([]event.Change, error) {
	all, err := open(message)
	var changes []event.Change
	if err == nil {
		changes, err = read(&record{members: all})
	}
	if err != nil {
		err = fmt.Errorf("envelope: %s message: %w", program, err)
		for i := range changes {
			changes[i].Unread = err
		}
	}
	return changes, err
}

// refused is like unread, for a message that may not name its table.
func (o origin) refused(err error) ([]event.Change, error) {
	if o.schema == "" || o.table == "" {
		return nil, err
	}
	return []event.Change{o.change(event.Replace)}, err
}

// unread returns what is known of a message that cannot be read: its table. Everything cached of
// that table is invalidated and filters are rebuilt, while the message is parked.
func (o origin) unread(path string, err error) ([]event.Change, error) {
	if o.schema == "" {
		o.table = "" // it may belong to any schema
	}
	return []event.Change{o.change(event.Replace)}, fmt.Errorf("%s: %w", path, err)
}
