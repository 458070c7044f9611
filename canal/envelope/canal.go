package envelope

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Canal reads a flat message of alibaba/canal (canal.mq.flatMessage=true). See the package's
// documentation for what must be set there.
func Canal(message []byte) ([]event.Change, error) { return decode("canal's", message, &flat{}) }

// flat is a flat message.
type flat struct {
	Database, Table, Type, SQL string
	ES                         integer
	IsDDL                      bool
	Data, Old                  []json.RawMessage
	MysqlType                  map[string]string
}

func (f *flat) place() place {
	at := place{schema: f.Database, table: f.Table}
	if f.ES > 0 {
		at.time = time.UnixMilli(int64(f.ES))
	}
	return at
}

func (f *flat) changes() ([]event.Change, error) {
	at := f.place()
	switch f.Type { // EventType of protocol/src/main/java/com/alibaba/otter/canal/protocol/EntryProtocol.proto
	case "INSERT", "UPDATE", "DELETE":
		return f.rows(at)
	case "QUERY", "EVENTTYPECOMPATIBLEPROTO2": // what canal does not know
		if !f.IsDDL {
			return nil, nil // the text of a statement whose rows follow (binlog_rows_query_log_events)
		}
		return place{time: at.time}.statement(f.SQL), nil
	case "TRUNCATE", "CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "DINDEX":
		return at.statement(f.SQL), nil
	case "GTID", "XACOMMIT", "XAROLLBACK", "MHEARTBEAT":
		return nil, nil
	}
	return at.refused(errNoType)
}

func (f *flat) rows(at place) ([]event.Change, error) {
	if len(f.Data) == 0 { // a statement in the binlog, not rows: which rows, and which tables, is not known
		return at.lost(), nil
	}
	if at.schema == "" || at.table == "" {
		return nil, errNoTable
	}
	types := flatTypes(f.MysqlType)
	value := func(column string, raw json.RawMessage) event.Value { return types[column].value(raw) }
	changes := make([]event.Change, 0, len(f.Data))
	var s shapes
	for i, raw := range f.Data {
		r, err := readRow(raw, value)
		if err != nil {
			return at.unread(fmt.Sprintf("data[%d]", i), err)
		}
		switch f.Type {
		case "INSERT":
			changes = append(changes, at.rowChange(event.Insert, event.Row{}, s.row(r)))
		case "DELETE":
			changes = append(changes, at.rowChange(event.Delete, s.row(r), event.Row{}))
		case "UPDATE":
			c := at.rowChange(event.Update, nothing(), s.row(r))
			// Versions that leave out a row's old if it is empty give less of them than rows, each
			// of which may then be another row's: https://github.com/alibaba/canal/pull/5021
			if len(f.Old) == len(f.Data) {
				o, err := readRow(f.Old[i], value)
				if err != nil {
					return at.unread(fmt.Sprintf("old[%d]", i), err)
				}
				if before, ok := r.before(o); ok {
					c.Before = s.row(before)
				}
			}
			changes = append(changes, c)
		}
	}
	return changes, nil
}

// flatType is a column's type, as information_schema has it.
type flatType struct {
	word  string   // the first, in lower case
	full  string   // all of it, in lower case
	width int      // the first number in parentheses
	names []string // of an ENUM or SET; nil if they are not known
	room  *int     // how many bytes the SETs of a message can still be made into
}

// flatTypes returns the types of a message's columns. The zero flatType is that of a column of
// which canal does not know it.
func flatTypes(all map[string]string) map[string]flatType {
	room := mostBytes
	types := make(map[string]flatType, len(all))
	for column, full := range all {
		word, _, _ := strings.Cut(full, "(")
		word, _, _ = strings.Cut(word, " ")
		of := flatType{word: strings.ToLower(word), room: &room}
		if len(full) < maxDigits { // else it lists names
			of.full = strings.ToLower(full)
			_, _ = fmt.Sscanf(full[len(word):], "(%d", &of.width)
		}
		if of.word == "enum" || of.word == "set" {
			of.names = names(full)
		}
		types[column] = of
	}
	return types
}

// value is a column's value. canal has all as texts.
func (t flatType) value(raw json.RawMessage) event.Value {
	if kindOf(raw) == 'n' {
		return event.Null()
	}
	s, err := text(raw)
	if err != nil {
		return event.Value{}
	}
	switch t.word {
	case "binary": // without the zero bytes at its end, as the log has it
		if short := t.width - utf8.RuneCountInString(s); short > 0 && short <= maxDigits {
			s += strings.Repeat("\x00", short)
		}
		return latin1(s)
	case "uuid", "inet4", "inet6", "json": // of the first three the bytes; of JSON not as MySQL writes numbers
		return event.Inexact(s)
	case "blob", "tinyblob", "mediumblob", "longblob", "varbinary", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection":
		return latin1(s)
	case "enum":
		return t.enum(s)
	case "set":
		return t.set(s)
	case "float":
		f, err := strconv.ParseFloat(s, 32)
		return valueOf(float32(f), err == nil)
	case "double", "real":
		f, err := strconv.ParseFloat(s, 64)
		return valueOf(f, err == nil)
	case "year":
		n, err := strconv.ParseInt(s, 10, 16)
		if err != nil {
			return event.Value{}
		}
		return year(n, t.width == 2)
	}
	if strings.Contains(t.full, "zerofill") {
		return event.Inexact(s) // clients may show zeros before it
	}
	return event.TextValue(s)
}

// latin1 is bytes that canal has as characters of ISO 8859-1 (LogEventConvert.java of
// alibaba/canal).
func latin1(s string) event.Value {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xFF {
			return event.Value{}
		}
		b = append(b, byte(r))
	}
	return valueOf(b, true)
}

// enum is the name of what canal has as a number, from 1; 0 is what MySQL has for a name that is
// none (https://github.com/alibaba/canal/issues/157).
func (t flatType) enum(s string) event.Value {
	n, err := strconv.Atoi(s)
	switch {
	case t.names == nil || err != nil || n < 0 || n > len(t.names):
		return event.Value{}
	case n == 0:
		return event.TextValue("")
	}
	return event.TextValue(t.names[n-1])
}

// set is the names whose bits are set in what canal has as a number.
func (t flatType) set(s string) event.Value {
	n, err := strconv.ParseUint(s, 10, 64)
	if t.names == nil || err != nil || bits.Len64(n) > len(t.names) {
		return event.Value{}
	}
	var of []string
	for ; n != 0; n &= n - 1 {
		name := t.names[bits.TrailingZeros64(n)]
		if *t.room -= len(name) + 1; *t.room < 0 {
			return event.Value{}
		}
		of = append(of, name)
	}
	return event.TextValue(strings.Join(of, ","))
}
