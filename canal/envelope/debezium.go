package envelope

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Debezium reads the value of a record of Debezium's connector for MySQL or MariaDB, as Kafka
// Connect's JsonConverter writes it. See the package's documentation for what must be set there.
func Debezium(message []byte) ([]event.Change, error) {
	if len(message) == 0 || string(message) == "null" { // a tombstone: the delete came before it
		return nil, nil
	}
	return decode("Debezium's", debezium, message)
}

func debezium(m members) ([]event.Change, error) {
	var schema json.RawMessage
	if len(m) == 2 && m.has("schema") && m.has("payload") {
		schema = m.get("schema")
		raw := m.get("payload")
		if raw == nil {
			return nil, nil
		}
		var err error
		if m, err = object(raw); err != nil {
			return nil, fmt.Errorf("payload: %w", err)
		}
	}
	switch {
	case m.has("op") && m.has("source"):
		return debeziumRow(m, schema)
	case m.has("ddl") || m.has("tableChanges"):
		return debeziumSchema(m)
	case m.isHeartbeat(), m.has("status") && m.has("id") && (m.has("event_count") || m.has("data_collections")): // of a transaction
		return nil, nil
	}
	return nil, errors.New("it has no op and source: remove the transform ExtractNewRecordState, which drops the row's old values")
}

func (m members) isHeartbeat() bool {
	for i := range m {
		if !strings.HasPrefix(m[i].name, "ts_") {
			return false
		}
	}
	return len(m) > 0
}

// debeziumPlace reads source.
func debeziumPlace(m members) (at place, err error) {
	raw := m.get("source")
	if raw == nil {
		return at, nil
	}
	source, err := object(raw)
	if err != nil {
		return at, fmt.Errorf("source: %w", err)
	}
	if at, err = source.place("db"); err != nil {
		return at, fmt.Errorf("source.%w", err)
	}
	if ms := source.integer("ts_ms"); ms > 0 {
		at.time = time.UnixMilli(ms)
	}
	return at, nil
}

func debeziumRow(m members, schema json.RawMessage) ([]event.Change, error) {
	at, err := debeziumPlace(m)
	if err != nil {
		return nil, err
	}
	op, err := m.text("op")
	if err != nil {
		return at.refused(err)
	}
	if op == "m" { // pg_logical_emit_message, which is no row
		return nil, nil
	}
	if at.schema == "" || at.table == "" {
		return nil, errNoTable
	}
	var s shapes
	side := func(name string) (event.Row, error) {
		raw := m.get(name)
		if raw == nil {
			return nothing(), nil
		}
		fields := fieldsOf(schema, name)
		r, err := readRow(raw, func(column string, raw json.RawMessage) event.Value { return debeziumValue(fields[column], raw) })
		return s.row(r), err
	}
	var before, after event.Row
	if op == "t" {
		return []event.Change{at.change(event.Truncate)}, nil
	}
	kind, ok := debeziumKinds[op]
	if !ok {
		return at.refused(errors.New("op: none that is known"))
	}
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

// debeziumKinds are the values of op that are of a row.
var debeziumKinds = map[string]event.Kind{"c": event.Insert, "r": event.Read, "u": event.Update, "d": event.Delete}

// debeziumSchema reads DDL.
func debeziumSchema(m members) ([]event.Change, error) {
	at, err := debeziumPlace(m)
	if err != nil {
		return nil, err
	}
	at.table = ""
	if at.schema, err = m.text("databaseName"); err != nil {
		return nil, err
	}
	sql, err := m.text("ddl")
	if err != nil {
		return place{time: at.time}.unread("ddl", errNotText)
	}
	return at.statement(sql), nil
}
