package mysqlbinlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/ddl"
)

var errStatement = errors.New(
	"a statement was logged instead of the rows that it changed: a session has set binlog_format, or a table is " +
		"versioned by transactions (ROW END is BIGINT): version it by TIMESTAMP(6)")

const (
	partChanges      = 500                    // of a transaction, delivered together
	partBytes        = 256 << 10              // approximate size of these changes
	positionInterval = 100 * time.Millisecond // between two positions while nothing is delivered

	shortPosition   = 4 << 10          // bytes; a position of at most this length is written after each transaction
	intervalPerByte = time.Microsecond // between two longer positions, per byte
)

// part contains the changes of a transaction, or a part of them.
type part struct {
	event.Batch
	from mark // the changes are visible when this transaction is
}

// reader makes parts from the events of a log.
type reader struct {
	ctx    context.Context
	tables *tables
	at     position
	log    place
	out    chan<- part
	first  *part         // is sent when the server starts to send; nil: already sent
	asked  mysql.GTIDSet // the server was asked to send the transactions after this set
	unread map[*replication.RowsEvent]error
	failed error // the error that ended the stream

	transaction
	xas
	unsaved   bool      // the position of the last transactions was not delivered
	delivered time.Time // when a transaction was last delivered
	written   time.Time // when the position was last formatted
	length    int       // of the formatted position
}

// transaction is the state of the current transaction.
type transaction struct {
	open    bool
	id      gtid
	from    mark
	single  bool   // a statement without a commit event
	begun   bool   // BEGIN was read (MySQL)
	xa      bool   // an XA transaction: prepared now, committed later
	xid     string // the name of the XA transaction
	time    time.Time
	changes []event.Change
	bytes   int
	rows    bool // a part of it was already delivered
}

// decode reads the rows of needed tables. It returns no error for an event that cannot be read.
// Otherwise the stream would end there, and after each restart it would end there again.
func (r *reader) decode(e *replication.RowsEvent, data []byte) error {
	header, err := e.DecodeHeader(data)
	if err != nil {
		return err
	}
	table := event.Table{Schema: string(e.Table.Schema), Name: string(e.Table.Table)}
	if _, needed := r.tables.need.Tables[table]; !needed {
		return nil
	}
	if k, ok := r.tables.known[e.TableID]; ok && k.err != nil {
		r.unread[e] = k.err
		return nil
	}
	if err := e.DecodeData(header, data); err != nil {
		r.unread[e] = err
	}
	return nil
}

// HandleEvent is called by go-mysql with one event at a time.
func (r *reader) HandleEvent(e *replication.BinlogEvent) error {
	err := r.handle(e)
	if err != nil {
		r.failed = err
	}
	return err
}

func (r *reader) handle(e *replication.BinlogEvent) error {
	if err := r.repeatXA(); err != nil {
		return err
	}
	r.log.follow(e.Header)
	switch event := e.Event.(type) {
	case *replication.FormatDescriptionEvent:
		return r.listening()
	case *replication.RotateEvent:
		r.log.rotate(string(event.NextLogName))
	case *replication.HeartbeatEvent:
		return r.idle()
	case *replication.MariadbGTIDEvent:
		single := event.IsStandalone()
		if err := r.begin(gtid{mariadb: event.GTID}, single, e.Header); err != nil {
			return err
		}
		r.xa = event.Flags&preparedXA != 0
		return nil
	case *replication.GTIDEvent:
		return r.beginMySQL(event, mysql.Tag{}, e.Header)
	case *replication.GtidTaggedLogEvent:
		return r.beginMySQL(&event.GTIDEvent, event.Tag, e.Header)
	case *replication.TableMapEvent:
		if err := r.checkCase(event); err != nil {
			return err
		}
		return r.tables.describe(event, description(e.RawData))
	case *replication.RowsEvent:
		return r.rowsOf(event, e.Header)
	case *replication.QueryEvent:
		return r.statement(event, e.Header)
	case *replication.XIDEvent:
		return r.commit(e.Header)
	case *replication.TransactionPayloadEvent:
		for _, inner := range event.Events {
			if err := r.handle(inner); err != nil {
				return err
			}
		}
	case *replication.GenericEvent:
		switch e.Header.EventType {
		case replication.INCIDENT_EVENT:
			return fmt.Errorf("%w: the server says that its log lacks changes (an incident event)",
				canal.ErrPositionLost)
		case replication.XA_PREPARE_LOG_EVENT:
			return r.endXA(event.Data)
		}
	}
	return nil
}

// listening is called at the start of each file of the log, and so when the server starts to
// send.
func (r *reader) listening() error {
	clearSet(r.asked)
	if r.first == nil {
		return nil
	}
	first := *r.first
	r.first = nil
	return r.send(first)
}

func (r *reader) beginMySQL(e *replication.GTIDEvent, tag mysql.Tag, h *replication.EventHeader) error {
	sid, err := uuid.FromBytes(e.SID)
	if err != nil {
		return err
	}
	if e.GNO == 0 {
		return setup("a transaction without a GTID: gtid_mode was not ON when it was written")
	}
	return r.begin(gtid{mysql: mysqlGTID{sid, tag, e.GNO}}, false, h)
}

// begin starts a transaction. It ends the current one, which has no commit event.
func (r *reader) begin(id gtid, single bool, h *replication.EventHeader) error {
	if err := r.end(); err != nil {
		return err
	}
	r.transaction = transaction{open: true, id: id, single: single, from: mark{place: r.log, mysql: id.mysql},
		time: at(h)}
	return nil
}

func at(h *replication.EventHeader) time.Time {
	if h.Timestamp == 0 {
		return time.Time{}
	}
	return time.Unix(int64(h.Timestamp), 0)
}

func (r *reader) rowsOf(e *replication.RowsEvent, h *replication.EventHeader) error {
	table := event.Table{Schema: string(e.Table.Schema), Name: string(e.Table.Table)}
	if _, needed := r.tables.need.Tables[table]; !needed {
		return nil
	}
	r.time = at(h)
	k, ok := r.tables.known[e.TableID]
	err := r.unread[e]
	delete(r.unread, e)
	if err == nil && !ok {
		err = errNoNames
	}
	if err == nil {
		err = k.err
	}
	if err == nil {
		each := 100
		if len(e.Rows) > 0 {
			each += 48*len(e.Rows[0]) + int(h.EventSize)/len(e.Rows)
		}
		r.changes = slices.Grow(r.changes, len(e.Rows))
		err = k.changes(e, func(c event.Change) {
			c.Time = r.time
			r.changes = append(r.changes, c)
			r.bytes += each
		})
	}
	if err != nil {
		r.unreadable(table, err)
		return nil
	}
	if r.xa {
		r.limitXA()
		return nil
	}
	if len(r.changes) >= partChanges || r.bytes >= partBytes {
		return r.flush(false)
	}
	return nil
}

// unreadable adds a Replace of a table, or of all tables if table is zero.
func (r *reader) unreadable(table event.Table, reason error) {
	r.changes = append(r.changes, event.Change{Schema: table.Schema, Table: table.Name, Kind: event.Replace,
		Time: r.time, Unread: withoutRow(reason)})
	r.bytes += 200
}

// withoutRow returns an error without the bytes of the row.
func withoutRow(err error) error {
	text, _, _ := strings.Cut(err.Error(), ", data")
	return errors.New(text)
}

func (r *reader) statement(e *replication.QueryEvent, h *replication.EventHeader) error {
	effect := ddl.Read(string(e.Query), string(e.Schema))
	r.time = at(h)
	switch effect.Control {
	case ddl.Begin:
		r.begun = true
		return nil
	case ddl.Commit:
		return r.commit(h)
	case ddl.Rollback: // logged for changes that cannot be rolled back, such as MyISAM's: they are done
		return r.commit(h)
	case ddl.XA:
		r.xa, r.xid = true, effect.XID
		return nil
	case ddl.XACommit:
		return r.commitXA(effect.XID)
	case ddl.XARollback:
		r.removeXA(effect.XID)
		return r.end()
	}
	r.effect(effect)
	if r.single || r.open && r.id.mysql.gno != 0 && !r.begun {
		return r.commit(h)
	}
	return nil
}

// checkCase reports a needed table as missing if the log contains a table whose name differs only
// in case. It does so for tables that the user has no access to.
func (r *reader) checkCase(e *replication.TableMapEvent) error {
	if len(r.tables.inaccessible) == 0 {
		return nil
	}
	t := event.Table{Schema: string(e.Schema), Name: string(e.Table)}
	bound, ok := r.tables.inaccessible[lower(t)]
	if !ok {
		return nil
	}
	delete(r.tables.inaccessible, lower(t))
	if bound == t { // the table exists
		return nil
	}
	return r.send(part{Batch: event.Batch{Missing: map[event.Table]string{bound: differsInCase(t)}}})
}

// effect adds the changes that a statement makes to tables.
func (r *reader) effect(effect ddl.Effect) {
	if effect.Unknown {
		r.unreadable(event.Table{}, errStatement)
		return
	}
	for _, c := range effect.Changes {
		if r.tables.server.lowerCase {
			c.Schema, c.Table = strings.ToLower(c.Schema), strings.ToLower(c.Table)
		}
		c.Time = r.time
		r.changes = append(r.changes, c)
	}
}

func (r *reader) commit(h *replication.EventHeader) error {
	r.time = at(h)
	return r.end()
}

// end ends the current transaction, and delivers its remaining changes.
func (r *reader) end() error {
	if !r.open {
		return nil
	}
	r.at.add(r.id)
	r.open = false
	if len(r.changes) > 0 || r.rows || time.Since(r.delivered) >= positionInterval {
		return r.flush(true)
	}
	r.unsaved = true
	return nil
}

// flush sends the changes that were read so far. ended reports whether the transaction has ended.
func (r *reader) flush(ended bool) error {
	b := part{Batch: event.Batch{Changes: r.changes, Time: r.time, Bytes: r.bytes}, from: r.from}
	r.changes, r.bytes, r.rows = nil, 0, !ended
	if ended {
		b.Position, r.delivered = r.position(), time.Now()
	}
	return r.send(b)
}

// position returns the current position as text, or "" if it was formatted a moment ago: a later
// part then contains the position. Formatting a long position takes longer than reading a
// transaction, so it may take at most about 5 % of the time.
func (r *reader) position() event.Position {
	if r.length > shortPosition && time.Since(r.written) < time.Duration(r.length)*intervalPerByte {
		r.unsaved = true
		return ""
	}
	p := r.at.text()
	r.written, r.length, r.unsaved = time.Now(), len(p), false
	return p
}

func (r *reader) send(b part) error {
	select {
	case r.out <- b:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// idle delivers the current time as progress, and the position if necessary. It is called when the
// server has nothing more to send.
func (r *reader) idle() error {
	b := part{Batch: event.Batch{Time: time.Now()}}
	if r.unsaved && !r.open {
		b.Position = r.position()
	}
	return r.send(b)
}

var _ replication.EventHandler = (*reader)(nil)
