package mysqlbinlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cacheaside/cacheaside/canal/event"
)

// shape describes the rows of a table, as the log describes them before each change.
type shape struct {
	table   event.Table
	columns *event.Columns
	values  []func(any) event.Value
	rowEnd  string // the column with the end of a row's period, for system-versioned tables
	err     error  // why the rows cannot be read
}

var (
	errNoNames = errors.New("the log does not name the columns: binlog_row_metadata was not FULL when it was written")
	errKind    = errors.New("a change of an unknown kind")
)

// tables caches the shapes of the tables that changed recently.
type tables struct {
	server *server
	need   event.Need
	// needed tables that the user has no access to, so that they may be missing; by their names in
	// lower case
	inaccessible map[event.Table]event.Table
	known        map[uint64]knownTable // by the table ID in the log
	warn         func(text string, args ...any)
	warned       map[event.Table]bool
}

type knownTable struct {
	described string // see description
	*shape
}

// description returns the part of an event that describes a table: without the header, which has
// the time and the place of the event, and without the checksum of both. Events within a
// compressed transaction have no checksum.
func description(raw []byte) []byte {
	end := len(raw) - replication.BinlogChecksumLength
	if crc32.ChecksumIEEE(raw[:end]) != binary.LittleEndian.Uint32(raw[end:]) {
		end = len(raw)
	}
	return raw[replication.EventHeaderSize:end]
}

const maxTables = 1000

// describe stores the shape of a table from an event with this description. It asks the server only
// if the description is new.
func (t *tables) describe(e *replication.TableMapEvent, text []byte) error {
	table := event.Table{Schema: string(e.Schema), Name: string(e.Table)}
	if _, needed := t.need.Tables[table]; !needed {
		return nil
	}
	defer func() { e.SignednessBitmap = nil }() // see unsignedValue
	if k, ok := t.known[e.TableID]; ok && k.described == string(text) {
		return nil
	}
	s, err := t.shape(table, e)
	if err != nil {
		return err
	}
	if len(t.known) >= maxTables {
		clear(t.known)
	}
	t.known[e.TableID] = knownTable{string(text), s}
	return nil
}

// shape returns the shape of a table, from an event and from information_schema.
func (t *tables) shape(table event.Table, e *replication.TableMapEvent) (*shape, error) {
	s := &shape{table: table, columns: event.NewColumns(), values: make([]func(any) event.Value, e.ColumnCount)}
	if uint64(len(e.ColumnName)) != e.ColumnCount {
		s.err = errNoNames
		return s, nil
	}
	s.columns = event.NewColumns(e.ColumnNameString()...)
	types, err := t.server.typesOf(table)
	if err != nil {
		return nil, err
	}
	d := &described{tables: t, table: table, TableMapEvent: e, types: types, needed: t.need.Tables[table],
		collations: e.CollationMap(), ofNames: e.EnumSetCollationMap(), unsigned: e.UnsignedMap(),
		enums: e.EnumStrValueMap(), sets: e.SetStrValueMap()}
	for i := range e.ColumnType {
		if s.values[i] = d.value(i); s.values[i] == nil {
			s.err = fmt.Errorf("column %s has an unknown type (%d)", e.ColumnName[i], e.ColumnType[i])
			return s, nil // the description of later columns cannot be read either
		}
	}
	s.rowEnd, err = d.rowEnd()
	return s, err
}

// row returns a Row with the values that go-mysql has read. skipped are the columns that are not
// in the row image. row stores the converted values.
func (s *shape) row(row []event.Value, values []any, skipped []int) (event.Row, error) {
	if len(values) != len(s.values) {
		return event.Row{}, fmt.Errorf("%d values for %d columns", len(values), len(s.values))
	}
	for i, v := range values {
		row[i] = s.values[i](v)
	}
	for _, i := range skipped {
		row[i] = event.Omitted()
	}
	return event.NewRow(s.columns, row)
}

// changes calls add with each change of an event.
func (s *shape) changes(e *replication.RowsEvent, add func(event.Change)) error {
	kind, each := event.Insert, 1
	switch e.Type() {
	case replication.EnumRowsEventTypeInsert:
	case replication.EnumRowsEventTypeUpdate:
		kind, each = event.Update, 2
	case replication.EnumRowsEventTypeDelete:
		kind = event.Delete
	default:
		if e.ColumnBitmap2 == nil {
			return errKind
		}
		kind, each = event.Update, 2 // partial JSON documents
	}
	if len(e.Rows)%each != 0 || len(e.SkippedColumns) != len(e.Rows) {
		return fmt.Errorf("%d row images", len(e.Rows))
	}
	room := make([]event.Value, len(e.Rows)*len(s.values))
	next := func(i int) (event.Row, error) {
		row := room[:len(s.values):len(s.values)]
		room = room[len(s.values):]
		return s.row(row, e.Rows[i], e.SkippedColumns[i])
	}
	for i := 0; i < len(e.Rows); i += each {
		c := event.Change{Schema: s.table.Schema, Table: s.table.Name, Kind: kind}
		first, err := next(i)
		if err != nil {
			return err
		}
		switch kind {
		case event.Insert:
			c.After = first
		case event.Delete:
			c.Before = first
		default:
			c.Before = first
			if c.After, err = next(i + 1); err != nil {
				return err
			}
		}
		if s.rowEnd != "" {
			var changed bool
			if c, changed = s.asOfNow(c); !changed {
				continue
			}
		}
		add(c)
	}
	return nil
}
