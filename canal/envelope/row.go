package envelope

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// row is one as it is being read.
type row struct {
	names  []string
	values []event.Value
}

// readRow reads the columns of a row, each by value, which says that it is not known where it
// cannot read it: then a binding that needs that column treats the row as not understood, and all
// others go on.
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

// before is the row as it was, of which old says what was changed. ok is false if that is not what
// old says: if it names columns that the row has not got, or none that differs, for an UPDATE that
// changes nothing is not written to the binlog.
func (r row) before(old row) (before row, ok bool) {
	before = row{r.names, slices.Clone(r.values)}
	for i, name := range old.names {
		at := slices.Index(r.names, name)
		if at < 0 {
			return row{}, false
		}
		ok = ok || !r.values[at].Equal(old.values[i])
		before.values[at] = old.values[i]
	}
	return before, ok
}

// shapes makes rows whose Columns are shared by those of a message that have the same.
type shapes struct {
	names   []string
	columns *event.Columns
}

func (s *shapes) row(r row) event.Row {
	if s.columns == nil || !slices.Equal(s.names, r.names) {
		s.names, s.columns = r.names, event.NewColumns(r.names...)
	}
	made, _ := event.NewRow(s.columns, r.values) // there is a value for each
	return made
}

// nothing is a row that was there, and of which nothing is known. A Binding that needs its key
// takes the change for not understood.
func nothing() event.Row {
	var none shapes
	return none.row(row{names: []string{}})
}

// place is of which table a message is, and when it was committed.
type place struct {
	schema, table string
	time          time.Time
}

var (
	errNoTable = errors.New("it does not name its table")
	errNoType  = errors.New("type: none that is known")
)

func (p place) change(kind event.Kind) event.Change {
	return event.Change{Schema: p.schema, Table: p.table, Kind: kind, Time: p.time}
}

// rowChange is change for a change of a row.
func (p place) rowChange(kind event.Kind, before, after event.Row) event.Change {
	c := p.change(kind)
	c.Before, c.After = before, after
	return c
}

// format is a message as it is decoded.
type format interface {
	place() place // as far as it could be decoded
	changes() ([]event.Change, error)
}

// decode reads a message of a kind.
func decode(whose string, message []byte, m format) ([]event.Change, error) {
	var changes []event.Change
	err := open(message, m)
	if err != nil {
		changes, err = m.place().refused(err)
	} else {
		changes, err = m.changes()
	}
	if err != nil {
		err = fmt.Errorf("envelope: %s message: %w", whose, err)
		for i := range changes {
			changes[i].Unread = err
		}
	}
	return changes, err
}

// refused is unread for a message that may not name its table.
func (p place) refused(err error) ([]event.Change, error) {
	if p.schema == "" || p.table == "" {
		return nil, err
	}
	return []event.Change{p.change(event.Replace)}, err
}

// unread returns what is known of a message that cannot be read: which table it is of. All that is
// cached of that table is invalidated, and filters are made anew, while the message is parked.
func (p place) unread(path string, err error) ([]event.Change, error) {
	if p.schema == "" {
		p.table = "" // it may be that of any schema
	}
	return []event.Change{p.change(event.Replace)}, fmt.Errorf("%s: %w", path, err)
}
