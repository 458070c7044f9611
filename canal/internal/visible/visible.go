// Package visible delivers the changes of a database's log when other sessions can see them. A
// server can send a transaction from its log before the commit is visible. A reader that
// invalidated the keys then would load the old row again, and cache it.
package visible

import (
	"context"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

const (
	askEvery  = 5 * time.Millisecond  // minimum time between two queries
	askSeldom = 20 * time.Millisecond // maximum time between two queries, even after a slow reply
	askShare  = 4                     // the time between two queries, as a multiple of the last reply time

	maxInvisible = time.Minute // longer is an error; the next Run delivers the transaction again
	maxHeldParts = 1024        // parts that are held back
	maxHeldBytes = 8 << 20     // approximate size of these parts
)

// MaxWait is a time that a server may take for the reply to a query, if it can wait for a
// transaction to become visible.
const MaxWait = askSeldom

// A Server knows how many of the first parts P of its log other sessions can see. A part
// contains the changes of a transaction, or some of them.
type Server[P any] interface {
	// Visible returns how many of the first parts are known to be visible, without asking.
	Visible(parts []P) int

	// Query asks the server how many of the first parts are visible. There is at least one part.
	Query(ctx context.Context, parts []P) (int, error)

	// Batch returns what is delivered of a part.
	Batch(part P) event.Batch
}

// Deliver delivers parts when they are visible, until ctx ends or a query fails. It holds a bounded
// number of parts back; then it does not receive more. If a part stays invisible for a minute, the
// error says that, and reason, which is why a server does that.
func Deliver[P any](ctx context.Context, s Server[P], reason string, parts <-chan P, out chan<- event.Batch) error {
	h := holder[P]{server: s, reason: reason}
	for {
		from, to := parts, out
		var first event.Batch
		var ask <-chan time.Time
		switch {
		case len(h.parts) == 0:
			to = nil
		case h.visible > 0:
			first, h.since = s.Batch(h.parts[0]), time.Time{}
		default:
			if h.due == nil {
				h.due = time.After(time.Until(h.next))
			}
			to, ask = nil, h.due
		}
		if len(h.parts) >= maxHeldParts || h.bytes >= maxHeldBytes {
			from = nil
		}
		select {
		case p := <-from:
			h.hold(p)
		case to <- first:
			h.drop()
		case <-ask:
			if err := h.query(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// holder holds parts back.
type holder[P any] struct {
	server  Server[P]
	reason  string
	parts   []P
	visible int              // number of first parts that are known to be visible
	bytes   int              // of all parts
	next    time.Time        // of a query
	due     <-chan time.Time // receives at next, or nil
	since   time.Time        // the first part is not visible; zero: it is
}

func (h *holder[P]) hold(p P) {
	h.parts = append(h.parts, p)
	h.bytes += h.server.Batch(p).Bytes
	if last := len(h.parts) - 1; h.visible == last {
		h.visible += h.server.Visible(h.parts[last:])
	}
}

// drop drops the first part, which has been delivered.
func (h *holder[P]) drop() {
	h.bytes -= h.server.Batch(h.parts[0]).Bytes
	clear(h.parts[:1]) // for the garbage collector
	h.parts = h.parts[1:]
	h.visible--
}

func (h *holder[P]) query(ctx context.Context) (err error) {
	h.due = nil
	began := time.Now()
	if h.since.IsZero() {
		h.since = began
	}
	if h.visible, err = h.server.Query(ctx, h.parts); err != nil {
		return err
	}
	h.next = began.Add(min(max(askEvery, askShare*time.Since(began)), askSeldom))
	if h.visible == 0 && began.Sub(h.since) > maxInvisible {
		return fmt.Errorf("for %v a transaction in the log has not become visible: %s", maxInvisible, h.reason)
	}
	return nil
}
