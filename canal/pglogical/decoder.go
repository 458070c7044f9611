package pglogical

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/logitem"
)

const (
	partChanges = 500       // of a transaction, delivered together
	partBytes   = 256 << 10 // approximate size of these changes
	maxSkipped  = 10        // namespaces of other outboxes that are logged
)

// decoder makes changes of the messages of the output plugin.
type decoder struct {
	catalog   *catalog
	needed    map[event.Table][]string
	prefixes  []string // of the needed messages
	skipped   []string // namespaces that were logged
	received  bool     // a needed message
	log       *slog.Logger
	types     types
	relations map[uint32]*relation
	stale     *pglogrepl.RelationMessage // of a relation that is not in the catalog: it may be a new partition
	text      textDecoder
	transaction
}

// transaction is the state of the current transaction.
type transaction struct {
	open bool
	xid  uint32
	time time.Time
	pending
	rows bool // a part of it was already sent
}

// pending contains the changes and messages that were read and not sent.
type pending struct {
	changes  []event.Change
	messages []event.Message
	bytes    int
}

// count returns the number of changes and messages.
func (p *pending) count() int { return len(p.changes) + len(p.messages) }

func newDecoder(c *catalog, server *session, need event.Need) decoder {
	d := decoder{needed: need.Tables, prefixes: need.Messages, log: slog.New(slog.DiscardHandler),
		types: types{server: server}}
	d.setCatalog(c)
	return d
}

// setCatalog replaces the catalog. After DDL the server sends new descriptions of the changed
// relations, but not of the relations above them.
func (d *decoder) setCatalog(c *catalog) {
	d.catalog = c
	if d.relations == nil {
		d.relations = map[uint32]*relation{}
	}
	for id, r := range d.relations {
		r.tables = d.tablesOf(id, r.own)
		if r.columns != nil {
			r.restrict(c.partitionsOf(id))
		}
	}
	d.types.known = map[uint32]converter{}
}

// tablesOf returns the needed tables that contain the rows of a relation. self is its name when the
// server described it. This name counts only while the catalog has no table of this name. If it
// has another one, that table was replaced as a whole, and self may be out of date: PostgreSQL 15
// does not describe a relation again after ALTER SCHEMA … RENAME. PostgreSQL 18 does.
func (d *decoder) tablesOf(id uint32, self event.Table) (all []event.Table) {
	for _, t := range d.catalog.of[id] {
		all = append(all, t.Table)
	}
	if _, needed := d.needed[self]; needed && d.catalog.tables[self] == nil {
		all = append(all, self)
	}
	return all
}

// decode reads a message. It returns the end of a transaction with the message that commits it. It
// returns no error for a row that cannot be read. Otherwise the stream would end there, and after
// each restart it would end there again.
func (d *decoder) decode(ctx context.Context, data []byte) (ended pglogrepl.LSN, err error) {
	if len(data) == 0 {
		return 0, errors.New("an empty message of the output plugin")
	}
	relation, isRow := d.rowOf(data)
	if isRow && (relation == nil || len(relation.tables) == 0) {
		return 0, nil
	}
	if isRow && relation.columns == nil && relation.message == nil {
		for _, t := range relation.tables {
			d.wholeTable(t, event.Replace)
		}
		return 0, nil
	}
	if isRow && relation.columns == nil { // it was described before DDL made it a needed one
		if err := d.describe(ctx, relation.message); err != nil {
			return 0, err
		}
		relation, _ = d.rowOf(data)
	}
	m, err := parseMessage(data)
	if err != nil && isRow {
		d.unreadable(relation, err)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var c event.Change
	switch m := m.(type) {
	case *pglogrepl.BeginMessage:
		d.transaction = transaction{open: true, xid: m.Xid, time: m.CommitTime}
		return 0, nil
	case *pglogrepl.CommitMessage:
		d.open = false
		return m.TransactionEndLSN, nil
	case *pglogrepl.RelationMessage:
		return 0, d.describe(ctx, m)
	case *pglogrepl.TruncateMessage:
		d.truncate(m)
		return 0, nil
	case *pglogrepl.LogicalDecodingMessage:
		d.message(m)
		return 0, nil
	case *pglogrepl.InsertMessage:
		c, err = relation.inserted(m)
	case *pglogrepl.UpdateMessage:
		c, err = relation.updated(m)
	case *pglogrepl.DeleteMessage:
		c, err = relation.deleted(m)
	default: // types and origins
		return 0, nil
	}
	if err != nil {
		d.unreadable(relation, err)
		return 0, nil
	}
	d.add(relation, c, size(len(data), len(relation.values)))
	return 0, nil
}

// rowOf returns the relation of a message with rows, which is nil if it was not described.
func (d *decoder) rowOf(data []byte) (r *relation, isRow bool) {
	switch pglogrepl.MessageType(data[0]) {
	case pglogrepl.MessageTypeInsert, pglogrepl.MessageTypeUpdate, pglogrepl.MessageTypeDelete:
		if len(data) < 5 {
			return nil, true
		}
		return d.relations[binary.BigEndian.Uint32(data[1:])], true
	}
	return nil, false
}

// parseMessage calls pglogrepl.Parse. It returns an error where Parse panics, for example if the
// message is too short. The error contains no bytes of the message.
func parseMessage(data []byte) (m pglogrepl.Message, err error) {
	defer func() {
		if p := recover(); p != nil || err != nil {
			m, err = nil, fmt.Errorf("a message of the type %q and %d bytes cannot be read", data[0], len(data))
		}
	}()
	if !fits(data) {
		return nil, errors.New("a length is larger than the message")
	}
	return pglogrepl.Parse(data)
}

// fits reports whether the values of a message are within the message. pglogrepl allocates the
// memory for a value before it reads it, up to 4 GiB.
func fits(data []byte) bool {
	switch pglogrepl.MessageType(data[0]) {
	case pglogrepl.MessageTypeMessage: // flags, a position, the prefix, and the content
		_, content, ok := bytes.Cut(data[min(10, len(data)):], []byte{0})
		return ok && len(content) >= 4 && int64(binary.BigEndian.Uint32(content)) == int64(len(content)-4)
	case pglogrepl.MessageTypeTruncate:
		return len(data) >= 5 && int64(binary.BigEndian.Uint32(data[1:])) <= int64(len(data))/4
	case pglogrepl.MessageTypeInsert, pglogrepl.MessageTypeUpdate, pglogrepl.MessageTypeDelete:
	default:
		return true
	}
	for rest := data[min(5, len(data)):]; len(rest) >= 3; { // the kind of a row, and its number of columns
		columns := binary.BigEndian.Uint16(rest[1:])
		rest = rest[3:]
		for range columns {
			if len(rest) == 0 {
				return false
			}
			kind := rest[0]
			rest = rest[1:]
			if kind != pglogrepl.TupleDataTypeText && kind != pglogrepl.TupleDataTypeBinary {
				continue
			}
			if len(rest) < 4 || int64(binary.BigEndian.Uint32(rest)) > int64(len(rest)-4) {
				return false
			}
			rest = rest[4+int(binary.BigEndian.Uint32(rest)):]
		}
	}
	return true
}

// maxDescribed is the maximum number of relations whose descriptions are kept although they are not
// needed: the names of the columns, and some 40 bytes for each. If another relation becomes a
// needed one, and the server does not describe it again, each of its rows counts as a replacement
// of its whole table.
const maxDescribed = 10_000

// describe stores the description of a relation. If the relation is not needed, it stores only the
// message, because the converters of its columns may need queries, and a publication can have many.
func (d *decoder) describe(ctx context.Context, m *pglogrepl.RelationMessage) error {
	r := newRelation(m, d.text)
	r.tables = d.tablesOf(m.RelationID, r.own)
	d.relations[m.RelationID] = r
	if len(r.tables) == 0 {
		if len(d.relations) <= maxDescribed {
			r.message = m
		}
		if d.catalog.parents {
			d.stale = m
		}
		return nil
	}
	oids := make([]uint32, len(m.Columns))
	for i, c := range m.Columns {
		oids[i] = c.DataType
	}
	values, err := d.types.converters(ctx, oids)
	if err != nil {
		return err
	}
	r.describe(m, values)
	r.restrict(d.catalog.partitionsOf(m.RelationID))
	return nil
}

// add adds a change of a relation to each needed table that contains its rows.
func (d *decoder) add(r *relation, c event.Change, size int) {
	for _, t := range r.tables {
		c.Schema, c.Table, c.Time = t.Schema, t.Name, d.time
		d.changes = append(d.changes, c)
		d.bytes += size
	}
}

// message adds a needed message. It ignores one that is not transactional, because the server sends
// it before the commit: a reader could load the old rows again, or the writer could roll back.
func (d *decoder) message(m *pglogrepl.LogicalDecodingMessage) {
	if !m.Transactional || !slices.Contains(d.prefixes, m.Prefix) {
		d.logSkipped(m.Prefix)
		return
	}
	d.received = true
	content := bytes.Clone(m.Content[:min(len(m.Content), logitem.MaxMessage)]) // of the buffer of the connection
	d.messages = append(d.messages, event.Message{Prefix: m.Prefix, Content: content})
	d.bytes += len(content) + 100
}

// logSkipped logs once that items of another outbox are skipped. While no needed message has
// arrived, it warns: the namespace may be misspelt, so that all items are lost.
func (d *decoder) logSkipped(prefix string) {
	namespace, ok := logitem.Namespace(prefix)
	if !ok || slices.Contains(d.prefixes, prefix) || slices.Contains(d.skipped, namespace) ||
		len(d.skipped) == maxSkipped {
		return
	}
	d.skipped = append(d.skipped, namespace)
	level := slog.LevelInfo
	if !d.received {
		level = slog.LevelWarn
	}
	d.log.Log(context.Background(), level,
		"pglogical: skipping the items of another outbox; compare the namespaces of BindOutbox and NewOutbox",
		"namespace", namespace)
}

// unreadable adds a Replace of the tables of a relation.
func (d *decoder) unreadable(r *relation, reason error) {
	d.add(r, event.Change{Kind: event.Replace, Unread: reason}, 200)
}

// truncate adds a Truncate of each table that was emptied, and a Replace of those of which only a
// part was.
func (d *decoder) truncate(m *pglogrepl.TruncateMessage) {
	for _, id := range m.RelationIDs {
		r := d.relations[id]
		if r == nil {
			continue
		}
		for _, t := range r.tables {
			kind := event.Replace
			if t == r.own {
				kind = event.Truncate
			}
			d.wholeTable(t, kind)
		}
	}
}

// wholeTable adds a change of all rows of a table, unless the changes have it.
func (d *decoder) wholeTable(t event.Table, kind event.Kind) {
	c := event.Change{Schema: t.Schema, Table: t.Name, Kind: kind, Time: d.time}
	if !slices.ContainsFunc(d.changes,
		func(o event.Change) bool { return o.Table == c.Table && o.Schema == c.Schema && o.Kind == c.Kind }) {
		d.changes = append(d.changes, c)
		d.bytes += 200
	}
}
