package envelope

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Canal reads a flat message of alibaba/canal (canal.mq.flatMessage=true). See the package
// documentation for the required settings.
func Canal(message []byte) ([]event.Change, error) { return decode("canal's", message, flat) }

func flat(m *record) ([]event.Change, error) {
	source := origin{schema: m.text("database"), table: m.text("table")}
	if ms := m.integer("es"); ms > 0 {
		source.time = time.UnixMilli(ms)
	}
	kind, sql, isDDL := m.text("type"), m.text("sql"), m.bool("isDdl")
	err := m.err
	switch kind { // EventType of protocol/src/main/java/com/alibaba/otter/canal/protocol/EntryProtocol.proto
	case "INSERT", "UPDATE", "DELETE":
		if err == nil {
			return flatRows(source, kind, m)
		}
	case "QUERY", "EVENTTYPECOMPATIBLEPROTO2": // a statement that canal does not recognise
		if err == nil && !isDDL {
			return nil, nil // the text of a statement whose rows follow (binlog_rows_query_log_events)
		}
		return origin{time: source.time}.statement(sql, err)
	case "TRUNCATE", "CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "DINDEX":
		return source.statement(sql, err)
	case "GTID", "XACOMMIT", "XAROLLBACK", "MHEARTBEAT":
		if err == nil {
			return nil, nil
		}
	default:
		err = cmp.Or(err, errNoType)
	}
	return source.refused(err)
}

func flatRows(source origin, kind string, m *record) ([]event.Change, error) {
	data, old := m.array("data"), m.array("old")
	types := flatTypes(m)
	if m.err != nil {
		return source.refused(m.err)
	}
	if len(data) == 0 { // logged as a statement: the rows and tables that it changed are unknown
		return source.unknownEffect(), nil
	}
	if source.schema == "" || source.table == "" {
		return nil, errNoTable
	}
	value := func(column string, raw json.RawMessage) event.Value { return types[column].value(raw) }
	changes := make([]event.Change, 0, len(data))
	var s shapes
	for i, raw := range data {
		r, err := readRow(raw, value)
		if err != nil {
			return source.unread(fmt.Sprintf("data[%d]", i), err)
		}
		switch kind {
		case "INSERT":
			changes = append(changes, source.rowChange(event.Insert, event.Row{}, s.row(r)))
		case "DELETE":
			changes = append(changes, source.rowChange(event.Delete, s.row(r), event.Row{}))
		case "UPDATE":
			c := source.rowChange(event.Update, unknownRow(), s.row(r))
			// Versions that omit empty entries of old send fewer entries than rows. An entry may
			// then belong to another row: https://github.com/alibaba/canal/pull/5021
			if len(old) == len(data) {
				o, err := readRow(old[i], value)
				if err != nil {
					return source.unread(fmt.Sprintf("old[%d]", i), err)
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

// flatType is the type of a column, as in information_schema.
type flatType struct {
	word     string   // the first word, in lower case
	full     string   // the whole type, in lower case; "" if it is long
	width    int      // the first number in parentheses
	names    []string // of an ENUM or SET; nil if unknown
	setBytes *int     // remaining bytes for the texts of all SETs of the message
}

// flatTypes returns the types of a message's columns. A column whose type canal does not send has
// the zero flatType.
func flatTypes(m *record) map[string]flatType {
	all := m.object("mysqlType").members
	setBytes := maxMessage
	types := make(map[string]flatType, len(all))
	for _, column := range all {
		full, err := text(column.value)
		if err != nil && kindOf(column.value) != 'n' {
			m.fail("mysqlType", errType)
		}
		word, _, _ := strings.Cut(full, "(")
		word, _, _ = strings.Cut(word, " ")
		parsed := flatType{word: strings.ToLower(word), setBytes: &setBytes}
		if len(full) < maxDigits { // longer types list names
			parsed.full = strings.ToLower(full)
			_, _ = fmt.Sscanf(full[len(word):], "(%d", &parsed.width)
		}
		if parsed.word == "enum" || parsed.word == "set" {
			parsed.names = names(full)
		}
		types[column.name] = parsed
	}
	return types
}

// value returns the value of a column. canal sends all values as texts.
func (f flatType) value(raw json.RawMessage) event.Value {
	if kindOf(raw) == 'n' {
		return event.Null()
	}
	s, err := text(raw)
	if err != nil {
		return event.Value{}
	}
	switch f.word {
	case "binary": // the log has it without trailing zero bytes
		if short := f.width - utf8.RuneCountInString(s); short > 0 && short <= maxDigits {
			s += strings.Repeat("\x00", short)
		}
		return latin1(s)
	case "uuid", "inet4", "inet6", "json":
		// the first three are raw bytes; JSON has numbers in another format than MySQL's
		return event.Inexact(s)
	case "blob", "tinyblob", "mediumblob", "longblob", "varbinary", "geometry", "point", "linestring", "polygon",
		"multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection":
		return latin1(s)
	case "enum":
		return f.enum(s)
	case "set":
		return f.set(s)
	case "float":
		n, err := strconv.ParseFloat(s, 32)
		return valueOf(float32(n), err == nil)
	case "double", "real":
		n, err := strconv.ParseFloat(s, 64)
		return valueOf(n, err == nil)
	case "year":
		n, err := strconv.ParseInt(s, 10, 16)
		if err != nil {
			return event.Value{}
		}
		return year(n, f.width == 2)
	}
	if strings.Contains(f.full, "zerofill") {
		return event.Inexact(s) // clients may show zeros before it
	}
	return event.TextValue(s)
}

// latin1 returns bytes that canal sends as characters of ISO 8859-1 (LogEventConvert.java of
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

// enum returns the name of a number from 1, as canal sends it. 0 is MySQL's value for an invalid
// name (https://github.com/alibaba/canal/issues/157).
func (f flatType) enum(s string) event.Value {
	n, err := strconv.Atoi(s)
	switch {
	case f.names == nil || err != nil || n < 0 || n > len(f.names):
		return event.Value{}
	case n == 0:
		return event.TextValue("")
	}
	return event.TextValue(f.names[n-1])
}

// set returns the names whose bits are set in a number, as canal sends it.
func (f flatType) set(s string) event.Value {
	n, err := strconv.ParseUint(s, 10, 64)
	if f.names == nil || err != nil || bits.Len64(n) > len(f.names) {
		return event.Value{}
	}
	var members []string
	for ; n != 0; n &= n - 1 {
		name := f.names[bits.TrailingZeros64(n)]
		if *f.setBytes -= len(name) + 1; *f.setBytes < 0 {
			return event.Value{}
		}
		members = append(members, name)
	}
	return event.TextValue(strings.Join(members, ","))
}
