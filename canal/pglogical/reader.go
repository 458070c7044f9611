package pglogical

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cacheaside/cacheaside/canal/event"
)

// reader receives messages of the server, and sends its status. Only its goroutine uses conn.
type reader struct {
	source    *Source
	conn      *pgconn.PgConn
	server    *session
	need      event.Need
	at        position      // read up to here; its catalog is not the current one while writers run
	confirmed pglogrepl.LSN // the server may discard its log before it
	out       chan<- part
	missing   map[event.Table]string // reported with the first part
	now       snapshot               // at the last beat
	writers   []uint64               // running transactions, whose changes the log may lack; see await

	decoder
	due      time.Time // of the next status
	received time.Time // when the server last sent something
	logEnd   pglogrepl.LSN
	logEndAt time.Time // at this time the log ended at logEnd
}

// run reads until ctx ends or an error occurs.
func (r *reader) run(ctx context.Context) error {
	r.received = time.Now()
	if err := r.beat(ctx); err != nil {
		return err
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := r.rest(time.Now()); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if !time.Now().Before(r.due) {
			if err := r.tick(ctx); err != nil {
				return err
			}
		}
		// the deadline is r.due; the connection is closed when ctx ends
		m, err := r.conn.ReceiveMessage(context.Background())
		if pgconn.Timeout(err) {
			if err := r.checkSilence(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		r.received = time.Now()
		if err := r.handle(ctx, m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *reader) handle(ctx context.Context, m pgproto3.BackendMessage) error {
	switch m := m.(type) {
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(m)
	case *pgproto3.CopyData:
		if len(m.Data) == 0 {
			return errors.New("an empty message")
		}
		switch m.Data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			k, err := pglogrepl.ParsePrimaryKeepaliveMessage(m.Data[1:])
			if err != nil {
				return err
			}
			return r.alive(ctx, k)
		case pglogrepl.XLogDataByteID:
			d, err := pglogrepl.ParseXLogData(m.Data[1:])
			if err != nil {
				return err
			}
			return r.message(ctx, d.WALData)
		}
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return errors.New("the server has ended the replication: it is shutting down")
	}
	return nil
}

// alive handles a keepalive. All transactions before ServerWALEnd have been sent.
func (r *reader) alive(ctx context.Context, k pglogrepl.PrimaryKeepaliveMessage) error {
	if k.ReplyRequested {
		if err := r.status(false); err != nil {
			return err
		}
	}
	if r.open {
		return nil
	}
	r.at.lsn = max(r.at.lsn, k.ServerWALEnd)
	b := event.Batch{Position: r.at.text()}
	if k.ServerWALEnd >= r.logEnd {
		b.Time = r.logEndAt
	}
	return r.send(ctx, part{Batch: b})
}

// tick sends the status, and looks for DDL.
func (r *reader) tick(ctx context.Context) error {
	began := time.Now()
	if err := r.beat(ctx); err != nil {
		return err
	}
	if err := r.refresh(ctx); err != nil {
		return err
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	return r.rest(began)
}

// rest determines the time of the next tick, after one that began at began. The log is read until
// then. So slow queries leave it at least half of the time, except if they take more than a quarter
// of Timeout: the server wants a status before Timeout. The time of the queries is no silence of
// the server, because nothing was read.
func (r *reader) rest(began time.Time) error {
	took := time.Since(began)
	r.received = r.received.Add(took)
	r.due = time.Now().Add(max(tick, min(took, r.source.options.Timeout/4)))
	return r.conn.Conn().SetReadDeadline(r.due)
}

// checkSilence returns an error if the server has sent nothing for Timeout, unless its process
// works. While it decodes a large transaction, such as a REFRESH MATERIALIZED VIEW of a table that
// is not published, it sends nothing and replies to nothing. It would begin from the start for a
// new connection.
func (r *reader) checkSilence(ctx context.Context) error {
	silent := time.Since(r.received)
	if silent <= r.source.options.Timeout {
		return nil
	}
	rows, err := r.server.ask(ctx,
		"SELECT wait_event_type FROM pg_stat_activity WHERE pid = $1 AND backend_type = 'walsender'",
		strconv.FormatUint(uint64(r.conn.PID()), 10))
	if err != nil {
		return err
	}
	if len(rows) == 0 || waitsForClient(rows[0][0]) {
		return fmt.Errorf("the server has sent nothing for %v", silent.Round(time.Second))
	}
	r.received = time.Now()
	r.log.Warn("pglogical: the server has sent nothing, but its process works: it decodes a large transaction",
		"silent", silent.Round(time.Second))
	return nil
}

// waitsForClient reports whether a process with this wait_event_type of pg_stat_activity waits for
// its client, or for something to do. The type is empty if the process uses the processor
// (https://www.postgresql.org/docs/current/monitoring-stats.html#WAIT-EVENT-TABLE).
func waitsForClient(waitEventType string) bool {
	return waitEventType == "Client" || waitEventType == "Activity"
}

// beat reads the state of the slot, and sends the status. The server replies to it.
func (r *reader) beat(ctx context.Context) error {
	asked := time.Now()
	s, err := r.server.slot(ctx, r.source.options.Slot)
	if err != nil {
		return err
	}
	if s.awaited != "" {
		return setup("synchronous_standby_names of the server includes this consumer (its application_name is %s), "+
			"so that commits wait for it, and it waits for them: name the standbys", s.awaited)
	}
	r.logEnd, r.logEndAt, r.now = s.logEnd, asked, s.now
	r.source.retained.Store(s.retained)
	return r.status(true)
}

// status reports to the server which part of its log it may discard: the part before the position
// that the Consumer has saved, and nothing after it.
func (r *reader) status(reply bool) error {
	if p := r.source.saved.Load(); p != nil {
		if saved, err := parse(*p); err == nil && saved.system == r.at.system && saved.database == r.at.database {
			r.confirmed = max(r.confirmed, saved.lsn)
		}
	}
	if err := r.conn.Conn().SetWriteDeadline(time.Now().Add(r.source.options.Timeout)); err != nil {
		return err
	}
	// A zero WALFlushPosition would be replaced by WALWritePosition, so both are the same.
	return pglogrepl.SendStandbyStatusUpdate(context.Background(), r.conn,
		pglogrepl.StandbyStatusUpdate{WALWritePosition: r.confirmed, WALFlushPosition: r.confirmed,
			WALApplyPosition: r.confirmed, ReplyRequested: reply})
}

// send sends a part to the holder. While the Consumer is busy, it continues to send the status:
// otherwise the server would close the connection.
func (r *reader) send(ctx context.Context, p part) error {
	for {
		select {
		case r.out <- p:
			return nil
		case <-time.After(time.Until(r.due)):
			began := time.Now()
			if err := r.beat(ctx); err != nil {
				return err
			}
			if err := r.rest(began); err != nil {
				return err
			}
			r.received = time.Now() // the server may have sent something, and nothing was read
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// message handles a message of the output plugin.
func (r *reader) message(ctx context.Context, data []byte) error {
	ended, err := r.decode(ctx, data)
	if err != nil {
		return err
	}
	if ended != 0 {
		r.at.lsn = max(r.at.lsn, ended)
	}
	if m := r.stale; m != nil {
		if err := r.refresh(ctx); err != nil {
			return err
		}
		err := r.describe(ctx, m)
		r.stale = nil
		return err
	}
	if ended != 0 && (r.count() > 0 || r.rows) || r.count() >= partChanges || r.bytes >= partBytes {
		return r.flush(ctx, ended != 0)
	}
	return nil
}

// flush sends the changes and messages that were read so far. ended reports whether the transaction
// has ended.
func (r *reader) flush(ctx context.Context, ended bool) error {
	p := part{Batch: event.Batch{Changes: r.changes, Messages: r.messages, Time: r.time, Bytes: r.bytes},
		xid: r.now.full(r.xid)}
	r.pending, r.rows = pending{}, !ended
	if ended {
		p.Position = r.at.text()
	}
	return r.send(ctx, p)
}

// closes closes the connection when ctx ends, so that a read ends too. stop waits for that.
func closes(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.Close() })
}
