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
// Connect's JsonConverter writes it. See the package documentation for the required settings.
func Debezium(message []byte) ([]event.Change, error) {
	if len(message) == 0 || string(message) == "null" { // a tombstone, which follows the delete
		return nil, nil
	}
	return decode("Debezium's", message, &debezium{raw: message})
}

// debezium is a message, or the payload of a message with a schema.
type debezium struct {
	Schema, Payload json.RawMessage

	Op            string
	Before, After json.RawMessage
	Source        *struct {
		DB, Table string
		TS        integer `json:"ts_ms"`
	}

	DatabaseName, DDL string // of a DDL message
	TableChanges      json.RawMessage

	Status          string          // of the begin or end of a transaction
	EventCount      json.RawMessage `json:"event_count"`
	DataCollections json.RawMessage `json:"data_collections"`

	raw    []byte
	schema field
}

func (d *debezium) origin() (at origin) {
	if d.Source != nil {
		at = origin{schema: d.Source.DB, table: d.Source.Table}
		if d.Source.TS > 0 {
			at.time = time.UnixMilli(int64(d.Source.TS))
		}
	}
	return at
}

func (d *debezium) changes() ([]event.Change, error) {
	if d.Payload == nil {
		return d.read()
	}
	if kindOf(d.Payload) == 'n' { // a tombstone
		return nil, nil
	}
	inner := &debezium{raw: d.Payload}
	_ = json.Unmarshal(d.Schema, &inner.schema) // parts that cannot be read are ignored
	if err := decodeJSON(d.Payload, inner); err != nil {
		return inner.origin().refused(fmt.Errorf("payload: %w", err))
	}
	return inner.read()
}

func (d *debezium) read() ([]event.Change, error) {
	switch {
	case d.Op != "" && d.Source != nil:
		return d.row()
	case d.DDL != "" || d.TableChanges != nil:
		at := d.origin()
		at.schema, at.table = d.DatabaseName, ""
		return at.statement(d.DDL), nil
	case d.Status != "" && (d.EventCount != nil || d.DataCollections != nil), d.isHeartbeat():
		return nil, nil
	}
	return nil, errors.New("it has no op and source: remove the transformation ExtractNewRecordState, which drops the row's old values")
}

func (d *debezium) isHeartbeat() bool {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(d.raw, &members) // already known to be an object
	for name := range members {
		if !strings.HasPrefix(name, "ts_") {
			return false
		}
	}
	return len(members) > 0
}

func (d *debezium) row() ([]event.Change, error) {
	at := d.origin()
	if d.Op == "m" { // pg_logical_emit_message: not a row
		return nil, nil
	}
	if at.schema == "" || at.table == "" {
		return nil, errNoTable
	}
	if d.Op == "t" {
		return []event.Change{at.change(event.Truncate)}, nil
	}
	kind, ok := debeziumKinds[d.Op]
	if !ok {
		return at.refused(errors.New("op: unknown value"))
	}
	var s shapes
	side := func(name string, raw json.RawMessage) (event.Row, error) {
		if kindOf(raw) == 'n' {
			return unknownRow(), nil
		}
		columns := d.schema.columns(name)
		r, err := readRow(raw, func(column string, raw json.RawMessage) event.Value { return debeziumValue(columns[column], raw) })
		return s.row(r), err
	}
	var before, after event.Row
	var err error
	if d.Op == "u" || d.Op == "d" {
		if before, err = side("before", d.Before); err != nil {
			return at.unread("before", err)
		}
	}
	if d.Op != "d" {
		if after, err = side("after", d.After); err != nil {
			return at.unread("after", err)
		}
	}
	return []event.Change{at.rowChange(kind, before, after)}, nil
}

// debeziumKinds maps the values of op for rows to kinds.
var debeziumKinds = map[string]event.Kind{"c": event.Insert, "r": event.Read, "u": event.Update, "d": event.Delete}
