package envelope

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Debezium reads the value of a record of Debezium's connector for MySQL, MariaDB or PostgreSQL, as
// Kafka Connect's JsonConverter writes it. See the package documentation for the required settings.
// For PostgreSQL use DebeziumPostgres: without it, the rows before all changes are unknown.
func Debezium(message []byte) ([]event.Change, error) { return identities(nil).decode(message) }

// DebeziumPostgres returns a Decoder that is like Debezium, and that knows which columns Debezium's
// connector for PostgreSQL has of a row before its change: those of the table's REPLICA IDENTITY.
// A message does not say which these are, and has made-up values in the other columns. identity
// lists the columns by table: for the default those of the primary key, for USING INDEX those of
// the index. An empty list means FULL. A column that is listed and that REPLICA IDENTITY does not
// include makes stale values: see the package documentation.
//
//	envelope.DebeziumPostgres(map[event.Table][]string{
//		{Schema: "public", Name: "users"}:  {"id"}, // the default
//		{Schema: "public", Name: "orders"}: nil,    // REPLICA IDENTITY FULL
//	})
//
// The row before a change of another table is unknown, and so is a column that is not listed. A
// Binding whose key needs one of them invalidates its whole loader with each UPDATE and DELETE.
func DebeziumPostgres(identity map[event.Table][]string) Decoder {
	known := make(identities, len(identity))
	for t, columns := range identity {
		known[t] = slices.Clone(columns)
	}
	return known.decode
}

// identities are the columns of each table's REPLICA IDENTITY.
type identities map[event.Table][]string

func (i identities) decode(message []byte) ([]event.Change, error) {
	if len(message) == 0 || string(message) == "null" { // a tombstone, which follows the delete
		return nil, nil
	}
	return decode("Debezium's", message, i.connect)
}

// connect reads a message with or without a schema. JsonConverter sends either exactly the members
// schema and payload, or only the payload. A flattened row may have a column with one of these
// names.
func (i identities) connect(m *record) ([]event.Change, error) {
	if len(m.members) != 2 || !m.has("schema") || !m.has("payload") {
		return i.debezium(m, nil)
	}
	payload := m.raw("payload")
	if kindOf(payload) == 'n' { // a tombstone
		return nil, nil
	}
	all, err := object(payload)
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return i.debezium(&record{members: all}, m.raw("schema"))
}

func (i identities) debezium(m *record, schema json.RawMessage) ([]event.Change, error) {
	if !m.has("source") {
		if m.isHeartbeat() || m.isTransaction() {
			return nil, nil
		}
		return nil, errFlattened
	}
	source := m.object("source")
	place := origin{schema: source.text("db"), table: source.text("table")}
	r := rows{schema: schema, value: field.value}
	if source.text("connector") == "postgresql" { // a binding names a table's schema, not its database
		place.schema = source.text("schema")
		r.value = field.ofPostgres
		r.identity, r.known = i[event.Table{Schema: place.schema, Name: place.table}]
		r.postgres = true
	}
	if ms := source.integer("ts_ms"); ms > 0 {
		place.time = time.UnixMilli(ms)
	}
	m.fail("source", source.err)
	switch {
	case m.has("op"):
		return r.change(place, m)
	case m.has("ddl") || m.has("tableChanges"):
		database, sql := m.text("databaseName"), m.text("ddl")
		return origin{database, "", place.time}.statement(sql, m.err)
	}
	return nil, errFlattened
}

var errFlattened = errors.New(
	"it has no op and source: remove the transformation ExtractNewRecordState, which drops the row's old values")

// isHeartbeat reports whether a message contains only the time.
func (r *record) isHeartbeat() bool {
	return len(r.members) > 0 &&
		!slices.ContainsFunc(r.members, func(m member) bool { return !strings.HasPrefix(m.name, "ts_") })
}

// isTransaction reports whether a message is the begin or end of a transaction.
func (r *record) isTransaction() bool {
	status, _ := text(r.raw("status"))
	return (status == "BEGIN" || status == "END") && r.has("id") && (r.has("event_count") || r.has("data_collections"))
}

// rows reads the rows of a message.
type rows struct {
	schema json.RawMessage
	value  func(field, json.RawMessage) event.Value
	shapes shapes

	postgres bool
	known    bool     // whether the REPLICA IDENTITY is known
	identity []string // empty: all columns
}

// change returns the change of a message that has an op.
func (r *rows) change(source origin, m *record) ([]event.Change, error) {
	op := m.text("op")
	kind, isRow := debeziumKinds[op]
	switch {
	case m.err != nil:
		return source.refused(m.err)
	case op == "m": // pg_logical_emit_message: not a row
		return nil, nil
	case source.schema == "" || source.table == "":
		return nil, errNoTable
	case op == "t":
		return []event.Change{source.change(event.Truncate)}, nil
	case !isRow:
		return source.refused(errors.New("op: unknown value"))
	}
	var before, after row
	var err error
	if kind == event.Update || kind == event.Delete {
		if before, err = r.side(m, "before"); err != nil {
			return source.unread("before", err)
		}
	}
	if kind != event.Delete {
		if after, err = r.side(m, "after"); err != nil {
			return source.unread("after", err)
		}
	}
	if r.postgres {
		before = r.identified(before, after)
	}
	c := source.change(kind)
	if kind == event.Update || kind == event.Delete {
		c.Before = r.shapes.row(before)
	}
	if kind != event.Delete {
		c.After = r.shapes.row(after)
	}
	return []event.Change{c}, nil
}

// side reads "before" or "after". A row that is not there has no columns: it existed, and its
// values are unknown.
func (r *rows) side(m *record, name string) (row, error) {
	raw := m.raw(name)
	if kindOf(raw) == 'n' {
		return row{}, nil
	}
	columns := columns(r.schema, name)
	return readRow(raw, func(column string, raw json.RawMessage) event.Value {
		f := columns[column]
		v := r.value(f, raw)
		if v.Known() && !v.IsNull() && f.mayBeNull(raw) {
			return event.Inexact(v.Text())
		}
		return v
	})
}

// identified returns the row before a change in PostgreSQL, with the columns of the REPLICA
// IDENTITY. All others are unknown: they may be NULL, or a default of their type. An update without
// the row before it has changed no column of the identity.
func (r *rows) identified(before, after row) row {
	switch {
	case !r.known:
		return row{}
	case len(r.identity) == 0: // all columns
		return before
	case len(before.names) == 0:
		before = after
	}
	known := row{before.names, make([]event.Value, len(before.names))}
	for _, column := range r.identity {
		if i := find(before.names, column); i >= 0 && !before.values[i].IsNull() { // such columns are NOT NULL
			known.values[i] = before.values[i]
		}
	}
	return known
}

// find returns the index of a column, or -1. Case does not matter, except between columns of a
// table that differ in nothing else.
func find(names []string, column string) int {
	if index := slices.Index(names, column); index >= 0 {
		return index
	}
	found := -1
	for index, name := range names {
		if strings.EqualFold(name, column) {
			if found >= 0 {
				return -1
			}
			found = index
		}
	}
	return found
}

// debeziumKinds maps the values of op for rows to kinds.
var debeziumKinds = map[string]event.Kind{"c": event.Insert, "r": event.Read, "u": event.Update, "d": event.Delete}
