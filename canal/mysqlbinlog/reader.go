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
	"golang.org/x/sync/semaphore"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/ddl"
)

var errStatement = errors.New("a statement, and the log does not tell which rows it changed: a session has set binlog_format, or a table is versioned by transactions (ROW END is BIGINT): version it by TIMESTAMP(6)")

const (
	partChanges = 500       // of a transaction, that are told together
	partBytes   = 256 << 10 // and so many bytes of them, about
	heldBytes   = 8 << 20   // of changes that others cannot see yet
	quiet       = 100 * time.Millisecond

	shortPosition = 4 << 10 // bytes: a text of so many is written each time
	eachByte      = time.Microsecond
)

// part is what a transaction has changed, or a part of that.
type part struct {
	event.Batch
	from   mark // others see it when they see what stands here
	weight int64
}

// reader makes batches of the events of a log.
type reader struct {
	ctx    context.Context
	tables *tables
	at     position
	log    place
	out    chan<- part
	room   *semaphore.Weighted
	first  *part         // is sent when the server has begun to send; nil: it was
	asked  mysql.GTIDSet // that the server was asked to begin behind
	unread map[*replication.RowsEvent]error
	failed error // what it has ended the stream for

	transaction
	xas
	unsaved bool // transactions have gone by whose position was not told
	told    time.Time
	written time.Time // when the position was last made a text
	length  int       // of that
}

// transaction is what was read of one.
type transaction struct {
	open    bool
	id      gtid
	from    mark
	single  bool   // a statement without a commit
	begun   bool   // MySQL's has begun with BEGIN
	xa      bool   // of XA: it is prepared, and committed later
	xid     string // its name there
	time    time.Time
	changes []event.Change
	bytes   int
	rows    bool // some of it has been told
}

// decode reads the rows of the tables that are needed. An event that cannot be read must not end
// the stream, again and again.
func (r *reader) decode(e *replication.RowsEvent, data []byte) error {
	at, err := e.DecodeHeader(data)
	if err != nil {
		return err
	}
	if _, needed := r.tables.need.Tables[event.Table{Schema: string(e.Table.Schema), Name: string(e.Table.Table)}]; !needed {
		return nil
	}
	if k, ok := r.tables.known[e.TableID]; ok && k.err != nil {
		r.unread[e] = k.err
		return nil
	}
	if err := e.DecodeData(at, data); err != nil {
		r.unread[e] = err
	}
	return nil
}

// HandleEvent is called by go-mysql, with one event after the other.
func (r *reader) HandleEvent(e *replication.BinlogEvent) error {
	err := r.handle(e)
	if err != nil {
		r.failed = err
	}
	return err
}

func (r *reader) handle(e *replication.BinlogEvent) error {
	if err := r.echo(); err != nil {
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
		if err := r.near(event); err != nil {
			return err
		}
		return r.tables.describe(event, e.RawData[replication.EventHeaderSize:])
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
			return fmt.Errorf("%w: the server says that its log lacks changes (an incident event)", canal.ErrPositionLost)
		case replication.XA_PREPARE_LOG_EVENT:
			return r.endXA(event.Data)
		}
	}
	return nil
}

// listening is called at the beginning of each file of the log, and so when the server has begun to
// send.
func (r *reader) listening() error {
	empty(r.asked)
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

// begin ends what is open: it has no commit of its own.
func (r *reader) begin(id gtid, single bool, h *replication.EventHeader) error {
	if err := r.end(); err != nil {
		return err
	}
	r.transaction = transaction{open: true, id: id, single: single, from: mark{place: r.log, mysql: id.mysql}, time: at(h)}
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
		r.bound()
		return nil
	}
	if len(r.changes) >= partChanges || r.bytes >= partBytes {
		return r.tell(false)
	}
	return nil
}

// unreadable adds the change of a table, or of all tables, that may have any other rows.
func (r *reader) unreadable(table event.Table, why error) {
	r.changes = append(r.changes, event.Change{Schema: table.Schema, Table: table.Name, Kind: event.Replace, Time: r.time, Unread: safe(why)})
	r.bytes += 200
}

// safe is an error without the bytes of the row.
func safe(err error) error {
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
	case ddl.Rollback: // of what could not be rolled back, such as MyISAM's: it is done
		return r.commit(h)
	case ddl.XA:
		r.xa, r.xid = true, effect.XID
		return nil
	case ddl.XACommit:
		return r.commitXA(effect.XID)
	case ddl.XARollback:
		r.forgetXA(effect.XID)
		return r.end()
	}
	r.effect(effect)
	if r.single || r.open && r.id.mysql.gno != 0 && !r.begun {
		return r.commit(h)
	}
	return nil
}

// near reports a table that is needed, and of which it is not known whether it is there, when the
// log has one whose name differs in upper and lower case only.
func (r *reader) near(e *replication.TableMapEvent) error {
	if len(r.tables.unseen) == 0 {
		return nil
	}
	t := event.Table{Schema: string(e.Schema), Name: string(e.Table)}
	bound, ok := r.tables.unseen[lower(t)]
	if !ok {
		return nil
	}
	delete(r.tables.unseen, lower(t))
	if bound == t { // it is there
		return nil
	}
	return r.send(part{Batch: event.Batch{Missing: map[event.Table]string{bound: misspelt(t)}}})
}

// effect adds the changes that a statement has made to tables.
func (r *reader) effect(effect ddl.Effect) {
	if effect.Unknown {
		r.unreadable(event.Table{}, errStatement)
		return
	}
	for _, c := range effect.Changes {
		if r.tables.server.small {
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

// end tells of what is left of a transaction that is over.
func (r *reader) end() error {
	if !r.open {
		return nil
	}
	r.at.add(r.id)
	r.open = false
	if len(r.changes) > 0 || r.rows || time.Since(r.told) >= quiet {
		return r.tell(true)
	}
	r.unsaved = true
	return nil
}

// tell hands over what has been read. over says that the transaction has ended.
func (r *reader) tell(over bool) error {
	b := part{Batch: event.Batch{Changes: r.changes, Time: r.time, Bytes: r.bytes}, from: r.from, weight: min(int64(r.bytes)+200, heldBytes)}
	r.changes, r.bytes, r.rows = nil, 0, !over
	if over {
		b.Position, r.told = r.position(), time.Now()
	}
	return r.send(b)
}

// position returns the position as a text. To write a long one takes longer than to read a
// transaction, so it is written as often as it takes up to some 5 % of the time; else it returns
// none, and a later batch has it.
func (r *reader) position() event.Position {
	if r.length > shortPosition && time.Since(r.written) < time.Duration(r.length)*eachByte {
		r.unsaved = true
		return ""
	}
	p := r.at.text()
	r.written, r.length, r.unsaved = time.Now(), len(p), false
	return p
}

func (r *reader) send(b part) error {
	if err := r.room.Acquire(r.ctx, b.weight); err != nil {
		return err
	}
	select {
	case r.out <- b:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// idle is that the server has nothing more to tell.
func (r *reader) idle() error {
	b := part{Batch: event.Batch{Time: time.Now()}}
	if r.unsaved && !r.open {
		b.Position = r.position()
	}
	return r.send(b)
}

var _ replication.EventHandler = (*reader)(nil)
