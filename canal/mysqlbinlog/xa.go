package mysqlbinlog

import (
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

const (
	preparedXA = 0x40 // FL_PREPARED_XA of MariaDB's GTID event (sql/log_event.h)
	xaChanges  = 10_000
	echoAfter  = time.Second
)

var errLongAgo = errors.New("an XA transaction made its changes before this reader began, or more of them than it keeps")

// xas are the transactions of XA, whose rows are logged when they are prepared, long before they
// are committed.
type xas struct {
	prepared map[string][]event.Change // xaChanges at most
	kept     int
	again    []event.Change // are told once more
	due      time.Time
}

// everything is the change in the place of those that are not known.
var everything = event.Change{Kind: event.Replace, Unread: errLongAgo}

// bound gives up to keep the rows of a transaction that is too large.
func (r *reader) bound() {
	if r.kept+len(r.changes) > xaChanges || r.bytes > heldBytes {
		r.changes, r.bytes = []event.Change{everything}, 0
	}
}

// endXA ends the rows of a transaction of XA. The first byte of the event says whether it is
// prepared, or committed in one phase, which MySQL logs so, and MariaDB as any other transaction
// (XA_prepare_log_event of both servers, sql/log_event.h). An event that says neither is told too
// early rather than never.
func (r *reader) endXA(raw []byte) error {
	if len(raw) == 0 || raw[0] != 0 {
		return r.end()
	}
	if len(r.prepared) < xaChanges {
		if r.prepared == nil {
			r.prepared = map[string][]event.Change{}
		}
		r.prepared[r.xid] = r.changes
		r.kept += len(r.changes)
	}
	r.changes, r.bytes = nil, 0 // it is not committed yet
	return r.end()
}

func (r *reader) forgetXA(xid string) []event.Change {
	changes := r.prepared[xid]
	delete(r.prepared, xid)
	r.kept -= len(changes)
	return changes
}

// commitXA tells of what was prepared, or, if that was before this run, or was too much, has
// everything be forgotten.
//
// MariaDB commits what was prepared in its log first, and in its engines then, so that what can be
// seen of the log (visible.go) says nothing of the engines. As there is nothing to ask, it is told
// twice.
func (r *reader) commitXA(xid string) error {
	if _, known := r.prepared[xid]; known {
		r.changes = append(r.changes, r.forgetXA(xid)...)
	} else {
		r.changes = append(r.changes, everything)
	}
	if len(r.again)+len(r.changes) > xaChanges {
		r.again = []event.Change{everything}
	} else {
		r.again = append(r.again, r.changes...)
	}
	r.due = time.Now().Add(echoAfter)
	return r.end()
}

// echo tells again what XA has committed a second ago. It is called with each event, of which there
// is one a second.
func (r *reader) echo() error {
	if len(r.again) == 0 || time.Now().Before(r.due) {
		return nil
	}
	b := part{Batch: event.Batch{Changes: r.again}}
	r.again = nil
	return r.send(b)
}
