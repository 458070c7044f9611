package envelope

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Maxwell reads a message of Maxwell's daemon. See the package documentation for the required
// settings.
func Maxwell(message []byte) ([]event.Change, error) {
	return decode("Maxwell's", message, maxwell)
}

func maxwell(m *record) ([]event.Change, error) {
	source := origin{m.text("database"), m.text("table"), maxwellTime(m.integer("ts"))}
	kind, sql := m.text("type"), m.text("sql")
	err := m.err
	switch kind {
	case "insert", "update", "delete", "bootstrap-insert":
		if err == nil {
			return maxwellRow(source, kind, m.raw("data"), m.raw("old"))
		}
	case "bootstrap-start", "bootstrap-complete":
		if err == nil {
			return nil, nil
		}
	case "table-create", "table-alter", "table-drop", "database-create", "database-alter", "database-drop":
		return source.statement(sql, err)
	default:
		err = cmp.Or(err, errNoType)
	}
	return source.refused(err)
}

// maxwellTime returns the time of ts. It is in seconds for rows, and in milliseconds for DDL
// (docs/docs/dataformat.md of zendesk/maxwell shows both).
func maxwellTime(ts int64) time.Time {
	switch {
	case ts <= 0:
		return time.Time{}
	case ts < 1e11: // seconds until the year 5138; milliseconds since 1973
		return time.Unix(ts, 0)
	}
	return time.UnixMilli(ts)
}

func maxwellRow(source origin, kind string, newRow, oldRow json.RawMessage) ([]event.Change, error) {
	if source.schema == "" || source.table == "" {
		return nil, errNoTable
	}
	if kindOf(newRow) == '"' {
		return source.unread("data", errors.New("the data is encrypted: Maxwell's encrypt must be none"))
	}
	data, err := readRow(newRow, maxwellValue)
	if err != nil {
		return source.unread("data", err)
	}
	var s shapes
	switch kind {
	case "insert":
		return []event.Change{source.rowChange(event.Insert, event.Row{}, s.row(data))}, nil
	case "bootstrap-insert":
		return []event.Change{source.rowChange(event.Read, event.Row{}, s.row(data))}, nil
	case "delete":
		return []event.Change{source.rowChange(event.Delete, s.row(data), event.Row{})}, nil
	}
	var old row
	if kindOf(oldRow) != 'n' {
		if old, err = readRow(oldRow, maxwellValue); err != nil {
			return source.unread("old", err)
		}
	}
	data = withNulls(data, old)
	c := source.rowChange(event.Update, unknownRow(), s.row(data))
	if before, ok := data.before(old); ok {
		c.Before = s.row(before)
	}
	return []event.Change{c}, nil
}

// withNulls returns data with the columns that only old contains. They are NULL now, and omitted
// by output_null=false: Maxwell only sends the old value of a column that it also has the new
// value of (writeOldData of BinlogConnectorEvent.java of zendesk/maxwell).
func withNulls(data, old row) row {
	for _, name := range old.names {
		if !slices.Contains(data.names, name) {
			data.names, data.values = append(data.names, name), append(data.values, event.Null())
		}
	}
	return data
}

// maxwellValue returns the value of a column. Maxwell does not send the type. An array of texts
// is treated as a SET; all other arrays, and objects, as JSON. A number with a fraction may be
// FLOAT or DOUBLE. The text of all of these is not exact.
func maxwellValue(_ string, raw json.RawMessage) event.Value {
	switch kindOf(raw) {
	case 'n':
		return event.Null()
	case '"':
		if s, err := text(raw); err == nil {
			return event.TextValue(s)
		}
		return event.Value{}
	case '{':
		return compact(raw)
	case '[':
		names, ok := texts(raw)
		if !ok {
			return compact(raw)
		}
		return event.Inexact(strings.Join(names, ","))
	case 't', 'f':
		return event.TextValue(string(raw))
	}
	if bytes.ContainsAny(raw, ".eE") {
		return event.Inexact(string(raw))
	}
	return event.TextValue(string(raw))
}

// texts returns the elements of an array. ok is false if an element is not a text.
func texts(raw []byte) ([]string, bool) {
	all, err := array(raw)
	names := make([]string, len(all))
	for i, e := range all {
		if names[i], err = text(e); err != nil {
			return nil, false
		}
	}
	return names, err == nil
}

func compact(raw []byte) event.Value {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return event.Value{}
	}
	return event.Inexact(b.String())
}
