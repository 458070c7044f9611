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

// Debezium reads the value of a record of Debezium's connector for MySQL or MariaDB, as Kafka
// Connect's JsonConverter writes it. See the package documentation for the required settings.
func Debezium(message []byte) ([]event.Change, error) {
	if len(message) == 0 || string(message) == "null" { // a tombstone, which follows the delete
		return nil, nil
	}
	return decode("Debezium's", message, connect)
}

// connect reads a message with or without a schema. JsonConverter sends either exactly the members
// schema and payload, or only the payload. A flattened row may have a column with one of these
// names.
func connect(m *record) ([]event.Change, error) {
	if len(m.members) != 2 || !m.has("schema") || !m.has("payload") {
		return debezium(m, nil)
	}
	payload := m.raw("payload")
	if kindOf(payload) == 'n' { // a tombstone
		return nil, nil
	}
	all, err := object(payload)
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return debezium(&record{members: all}, m.raw("schema"))
}

func debezium(m *record, schema json.RawMessage) ([]event.Change, error) {
	if !m.has("source") {
		if m.isHeartbeat() || m.isTransaction() {
			return nil, nil
		}
		return nil, errFlattened
	}
	source := m.object("source")
	at := origin{schema: source.text("db"), table: source.text("table")}
	if ms := source.integer("ts_ms"); ms > 0 {
		at.time = time.UnixMilli(ms)
	}
	m.fail("source", source.err)
	switch {
	case m.has("op"):
		return debeziumRow(at, m, schema)
	case m.has("ddl") || m.has("tableChanges"):
		database, sql := m.text("databaseName"), m.text("ddl")
		return origin{database, "", at.time}.statement(sql, m.err)
	}
	return nil, errFlattened
}

var errFlattened = errors.New("it has no op and source: remove the transformation ExtractNewRecordState, which drops the row's old values")

// isHeartbeat reports whether a message contains only the time.
func (r *record) isHeartbeat() bool {
	return len(r.members) > 0 && !slices.ContainsFunc(r.members, func(m member) bool { return !strings.HasPrefix(m.name, "ts_") })
}

// isTransaction reports whether a message is the begin or end of a transaction.
func (r *record) isTransaction() bool {
	status, _ := text(r.raw("status"))
	return (status == "BEGIN" || status == "END") && r.has("id") && (r.has("event_count") || r.has("data_collections"))
}

func debeziumRow(at origin, m *record, schema json.RawMessage) ([]event.Change, error) {
	op := m.text("op")
	kind, isRow := debeziumKinds[op]
	switch {
	case m.err != nil:
		return at.refused(m.err)
	case op == "m": // pg_logical_emit_message: not a row
		return nil, nil
	case at.schema == "" || at.table == "":
		return nil, errNoTable
	case op == "t":
		return []event.Change{at.change(event.Truncate)}, nil
	case !isRow:
		return at.refused(errors.New("op: unknown value"))
	}
	var s shapes
	side := func(name string) (event.Row, error) {
		raw := m.raw(name)
		if kindOf(raw) == 'n' {
			return unknownRow(), nil
		}
		columns := columns(schema, name)
		r, err := readRow(raw, func(column string, raw json.RawMessage) event.Value { return debeziumValue(columns[column], raw) })
		return s.row(r), err
	}
	var before, after event.Row
	var err error
	if op == "u" || op == "d" {
		if before, err = side("before"); err != nil {
			return at.unread("before", err)
		}
	}
	if op != "d" {
		if after, err = side("after"); err != nil {
			return at.unread("after", err)
		}
	}
	return []event.Change{at.rowChange(kind, before, after)}, nil
}

// debeziumKinds maps the values of op for rows to kinds.
var debeziumKinds = map[string]event.Kind{"c": event.Insert, "r": event.Read, "u": event.Update, "d": event.Delete}
