package mysqlbinlog

import (
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

const (
	preparedXA  = 0x40    // FL_PREPARED_XA of MariaDB's GTID event (sql/log_event.h)
	xaChanges   = 10_000  // of a prepared transaction that are kept
	xaBytes     = 8 << 20 // approximate size of these changes
	repeatAfter = time.Second
)

var errLongAgo = errors.New(
	"an XA transaction made its changes before this reader started, or made more than it stores")

// xas stores the changes of prepared XA transactions. Their rows are logged when they are
// prepared, which can be long before the commit.
type xas struct {
	prepared      map[string][]event.Change // at most xaChanges
	preparedCount int
	repeat        []event.Change // to be delivered a second time
	repeatAt      time.Time
}

// replaceAll is the change that stands for unknown changes.
var replaceAll = event.Change{Kind: event.Replace, Unread: errLongAgo}

// limitXA replaces the rows of a transaction that is too large by replaceAll.
func (r *reader) limitXA() {
	if r.preparedCount+len(r.changes) > xaChanges || r.bytes > xaBytes {
		r.changes, r.bytes = []event.Change{replaceAll}, 0
	}
}

// endXA is called at the end of the rows of an XA transaction: it stores or delivers them. The
// first byte of the event is 0 if the transaction is prepared, and another value if it is committed
// in one phase. MySQL logs a one-phase commit this way; MariaDB logs it like any other transaction
// (XA_prepare_log_event of both servers, sql/log_event.h). For an unexpected event the changes are
// delivered immediately: too early rather than never.
func (r *reader) endXA(raw []byte) error {
	if len(raw) == 0 || raw[0] != 0 {
		return r.end()
	}
	if len(r.prepared) < xaChanges {
		if r.prepared == nil {
			r.prepared = map[string][]event.Change{}
		}
		r.prepared[r.xid] = r.changes
		r.preparedCount += len(r.changes)
	}
	r.changes, r.bytes = nil, 0 // it is not committed
	return r.end()
}

func (r *reader) removeXA(xid string) []event.Change {
	changes := r.prepared[xid]
	delete(r.prepared, xid)
	r.preparedCount -= len(changes)
	return changes
}

// commitXA delivers the changes of a prepared transaction. If it was prepared before this run, or
// was too large, it delivers replaceAll.
//
// MariaDB commits a prepared transaction first in its log and then in its engines. The visible
// position (visible.go) does not cover the engines, and the server offers no other way to ask. So
// the changes are delivered twice.
func (r *reader) commitXA(xid string) error {
	if _, known := r.prepared[xid]; known {
		r.changes = append(r.changes, r.removeXA(xid)...)
	} else {
		r.changes = append(r.changes, replaceAll)
	}
	if len(r.repeat)+len(r.changes) > xaChanges {
		r.repeat = []event.Change{replaceAll}
	} else {
		r.repeat = append(r.repeat, r.changes...)
	}
	r.repeatAt = time.Now().Add(repeatAfter)
	return r.end()
}

// repeatXA delivers changes again that XA committed at least repeatAfter ago. It is called with
// each event, and the server sends at least one per second.
func (r *reader) repeatXA() error {
	if len(r.repeat) == 0 || time.Now().Before(r.repeatAt) {
		return nil
	}
	b := part{Batch: event.Batch{Changes: r.repeat}}
	r.repeat = nil
	return r.send(b)
}
