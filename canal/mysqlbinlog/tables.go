package mysqlbinlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cacheaside/cacheaside/canal/event"
)

// shape is how the rows of a table look, as the log describes them before each change.
type shape struct {
	table   event.Table
	columns *event.Columns
	values  []func(any) event.Value
	err     error // why they cannot be read
}

var (
	errNoNames = errors.New("the log does not name its columns: binlog_row_metadata was not FULL when it was written")
	errKind    = errors.New("a change of a kind that is not known")
)

// tables keeps the shapes of the tables that were last changed.
type tables struct {
	server *server
	need   event.Need
	known  map[uint64]knownTable // by the number that the log gives to a table
	warn   func(text string, args ...any)
	warned map[event.Table]bool
}

type knownTable struct {
	described string // as the log has it
	*shape
}

const manyTables = 1000

var widths = map[byte]int{mysql.MYSQL_TYPE_TINY: 1, mysql.MYSQL_TYPE_SHORT: 2, mysql.MYSQL_TYPE_INT24: 3, mysql.MYSQL_TYPE_LONG: 4, mysql.MYSQL_TYPE_LONGLONG: 8}

// describe takes in what the log says of a table.
func (t *tables) describe(e *replication.TableMapEvent, raw []byte) error {
	table := event.Table{Schema: string(e.Schema), Name: string(e.Table)}
	columns, needed := t.need.Tables[table]
	if !needed {
		return nil
	}
	defer func() { e.SignednessBitmap = nil }() // see unsignedValue
	if k, ok := t.known[e.TableID]; ok && k.described == string(raw) {
		return nil
	}
	s, err := t.shape(table, e)
	if err != nil {
		return err
	}
	if t.server.image == "MINIMAL" && s.err == nil {
		var primary []string
		for _, i := range e.PrimaryKey {
			if i < uint64(len(e.ColumnName)) {
				primary = append(primary, string(e.ColumnName[i]))
			}
		}
		if err := minimal(table, columns, primary); err != nil {
			return err
		}
	}
	if len(t.known) >= manyTables {
		clear(t.known)
	}
	t.known[e.TableID] = knownTable{string(raw), s}
	return nil
}

func (t *tables) shape(table event.Table, e *replication.TableMapEvent) (*shape, error) {
	s := &shape{table: table, columns: event.NewColumns(), values: make([]func(any) event.Value, e.ColumnCount)}
	if uint64(len(e.ColumnName)) != e.ColumnCount {
		s.err = errNoNames
		return s, nil
	}
	s.columns = event.NewColumns(e.ColumnNameString()...)
	collations, ofNames, unsigned := e.CollationMap(), e.EnumSetCollationMap(), e.UnsignedMap()
	enums, sets := e.EnumStrValueMap(), e.SetStrValueMap()
	var types map[string]string
	for i, kind := range e.ColumnType {
		charset := t.server.charsets[int(collations[i])]
		meta := e.ColumnMeta[i]
		switch kind {
		case mysql.MYSQL_TYPE_TINY, mysql.MYSQL_TYPE_SHORT, mysql.MYSQL_TYPE_INT24, mysql.MYSQL_TYPE_LONG, mysql.MYSQL_TYPE_LONGLONG:
			s.values[i] = value
			if unsigned[i] {
				s.values[i] = unsignedValue(widths[kind])
			}
		case mysql.MYSQL_TYPE_YEAR, mysql.MYSQL_TYPE_NEWDECIMAL, mysql.MYSQL_TYPE_NULL,
			mysql.MYSQL_TYPE_DATE, mysql.MYSQL_TYPE_DATETIME, mysql.MYSQL_TYPE_DATETIME2, mysql.MYSQL_TYPE_TIMESTAMP, mysql.MYSQL_TYPE_TIMESTAMP2, mysql.MYSQL_TYPE_TIME,
			mysql.MYSQL_TYPE_GEOMETRY, mysql.MYSQL_TYPE_VECTOR:
			s.values[i] = value
		case mysql.MYSQL_TYPE_FLOAT, mysql.MYSQL_TYPE_DOUBLE:
			s.values[i] = t.inexact(table, string(e.ColumnName[i]), value)
		case mysql.MYSQL_TYPE_JSON:
			s.values[i] = t.inexact(table, string(e.ColumnName[i]), jsonValue)
		case mysql.MYSQL_TYPE_TIME2:
			s.values[i] = timeValue(int(meta))
		case mysql.MYSQL_TYPE_BIT:
			s.values[i] = unsignedValue(8)
		case mysql.MYSQL_TYPE_VARCHAR, mysql.MYSQL_TYPE_VAR_STRING, mysql.MYSQL_TYPE_BLOB:
			s.values[i] = textValue(charset)
		case mysql.MYSQL_TYPE_STRING:
			names := decoder(t.server.charsets[int(ofNames[i])])
			switch real := byte(meta >> 8); {
			case real == mysql.MYSQL_TYPE_ENUM:
				s.values[i] = enumValue(decoded(enums[i], names))
			case real == mysql.MYSQL_TYPE_SET:
				s.values[i] = setValue(decoded(sets[i], names))
			case charset != "binary":
				s.values[i] = textValue(charset)
			default:
				if types == nil {
					var err error
					if types, err = t.server.typesOf(table); err != nil {
						return nil, err
					}
				}
				s.values[i] = t.fixedValue(table, e, i, types)
			}
		default:
			s.err = fmt.Errorf("column %s is of a type (%d) that is not known", e.ColumnName[i], kind)
			return s, nil // what the log says of the columns behind it is not known either
		}
	}
	return s, nil
}

func needsColumn(columns []string, name string) bool {
	return slices.ContainsFunc(columns, func(c string) bool { return strings.EqualFold(c, name) })
}

// inexact is of FLOAT, DOUBLE and MySQL's JSON. The client shows them in another way than the log
// has them, and the log does not say in which: FLOAT in six digits, DOUBLE(10,2) in two decimals,
// the numbers of JSON by rules of its own. A key of them could differ from the one that is cached:
// it is not known.
func (t *tables) inexact(table event.Table, column string, otherwise func(any) event.Value) func(any) event.Value {
	if !needsColumn(t.need.Tables[table], column) {
		return otherwise
	}
	if !t.warned[table] {
		t.warned[table] = true
		t.warn("mysqlbinlog: a key's column is FLOAT, DOUBLE or JSON, of which the log does not tell how the client shows it: each change invalidates all keys", "table", table.Schema+"."+table.Name, "column", column)
	}
	return unknownValue
}

// fixedValue is of BINARY, and of MariaDB's UUID, INET4 and INET6, which look the same in the log,
// all without the zero bytes at their end.
func (t *tables) fixedValue(table event.Table, e *replication.TableMapEvent, i int, types map[string]string) func(any) event.Value {
	text := plain
	width := fixedWidth(e.ColumnMeta[i])
	name := strings.ToLower(string(e.ColumnName[i]))
	kind := types[name]
	switch {
	case kind == "uuid":
		text = uuidText
	case kind == "inet6":
		text = inet6Text
	case kind == "inet4":
		text = inet4Text
	case kind != "binary" && t.server.flavor == mysql.MariaDBFlavor:
		if needsColumn(t.need.Tables[table], name) && !t.warned[table] {
			t.warned[table] = true
			t.warn("mysqlbinlog: a key's column may be BINARY, UUID or INET6, and the user may not see which: each change invalidates all keys; grant SELECT on the table", "table", table.Schema+"."+table.Name, "column", name)
		}
		return unknownValue
	}
	return func(v any) event.Value {
		s, ok := v.(string)
		if !ok {
			return value(v)
		}
		b := make([]byte, max(width, len(s)))
		copy(b, s)
		if made, ok := text(b); ok {
			return event.TextValue(made)
		}
		return event.Value{}
	}
}

// fixedWidth is the width of a column of type STRING: two bits of it are in the type
// (Field_string::do_save_field_metadata of the servers).
func fixedWidth(meta uint16) int {
	if kind := meta >> 8; kind&0x30 != 0x30 {
		return int(meta&0xff) | int((kind&0x30)^0x30)<<4
	}
	return int(meta & 0xff)
}

// row makes a Row of what go-mysql has read; skipped are the columns of which the log does not
// tell. row is where its values are put.
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

// changes are those of an event.
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
		kind, each = event.Update, 2 // with parts of JSON documents
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
		add(c)
	}
	return nil
}
