package pglogical

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// part contains the changes of a transaction, or a part of them.
type part struct {
	event.Batch
	xid uint64 // the changes are visible when this transaction is; 0: at once
}

// snapshot describes which transactions have ended, so that other sessions can see those that were
// committed: all with an ID below max, except running. In the zero snapshot none has ended.
//
// PostgreSQL writes the commit of a transaction to its log, and can send it from there, before the
// transaction leaves the list of running ones. With synchronous replication it waits for a standby
// in between (https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION).
type snapshot struct {
	max     uint64
	running []uint64
}

// parseSnapshot reads the text of a pg_snapshot: "xmin:xmax:" and the IDs of the running
// transactions, separated by commas.
func parseSnapshot(text string) (snapshot, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return snapshot{}, fmt.Errorf("%.40q is not a snapshot", text)
	}
	var s snapshot
	var err error
	s.max, err = strconv.ParseUint(parts[1], 10, 64)
	for id := range strings.SplitSeq(parts[2], ",") {
		if id == "" || err != nil {
			continue
		}
		var n uint64
		n, err = strconv.ParseUint(id, 10, 64)
		s.running = append(s.running, n)
	}
	if err != nil {
		return snapshot{}, fmt.Errorf("%.40q is not a snapshot: %w", text, err)
	}
	return s, nil
}

// visible reports whether a transaction has ended, so that it is visible if it was committed.
func (s snapshot) visible(xid uint64) bool {
	return xid == 0 || xid < s.max && !slices.Contains(s.running, xid)
}

// full returns the ID of a transaction whose lower 32 bits are in the log. The transaction must be
// at most 2^31 older or newer than the snapshot. All transactions in the log are within this range:
// the slot holds back catalog_xmin, and the server assigns no ID that is 2^31 newer than that.
func (s snapshot) full(xid uint32) uint64 {
	return s.max + uint64(int64(int32(xid-uint32(s.max))))
}

// snapshot returns the snapshot of now.
func (s *session) snapshot(ctx context.Context) (snapshot, error) {
	rows, err := s.ask(ctx, "SELECT pg_current_snapshot()")
	if err != nil {
		return snapshot{}, err
	}
	return parseSnapshot(rows[0][0])
}

const (
	askEvery  = 5 * time.Millisecond  // minimum time between two queries
	askSeldom = 20 * time.Millisecond // maximum time between two queries, even after a slow reply
	askShare  = 4                     // the time between two queries, as a multiple of the last reply time

	maxInvisible = time.Minute // longer is an error; the next Run delivers the transaction again
	maxHeldParts = 1024        // parts that are held back
	maxHeldBytes = 8 << 20     // approximate size of these parts
)

// holder delivers parts when other sessions can see their changes.
type holder struct {
	server *session
	parts  []part
	bytes  int
	seen   snapshot
	next   time.Time // of a query
	since  time.Time // the first of parts is not visible; zero: it is
}

// run delivers parts from in until ctx ends or a query fails.
func (h *holder) run(ctx context.Context, in <-chan part, deliver chan<- event.Batch) error {
	for {
		from, to := in, deliver
		var first event.Batch
		var ask <-chan time.Time
		switch {
		case len(h.parts) == 0:
			to = nil
		case h.seen.visible(h.parts[0].xid):
			first, h.since = h.parts[0].Batch, time.Time{}
		default:
			to, ask = nil, time.After(time.Until(h.next))
		}
		if len(h.parts) >= maxHeldParts || h.bytes >= maxHeldBytes {
			from = nil
		}
		select {
		case p := <-from:
			h.parts = append(h.parts, p)
			h.bytes += p.Bytes
		case to <- first:
			h.bytes -= first.Bytes
			h.parts = slices.Delete(h.parts, 0, 1)
		case <-ask:
			if err := h.ask(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ask asks the server which transactions are visible.
func (h *holder) ask(ctx context.Context) error {
	began := time.Now()
	if h.since.IsZero() {
		h.since = began
	}
	seen, err := h.server.snapshot(ctx)
	if err != nil {
		return err
	}
	h.seen = seen
	h.next = began.Add(min(max(askEvery, askShare*time.Since(began)), askSeldom))
	if began.Sub(h.since) > maxInvisible && !h.seen.visible(h.parts[0].xid) {
		return fmt.Errorf("for %v a committed transaction has not become visible: it waits for a standby of "+
			"synchronous_standby_names", maxInvisible)
	}
	return nil
}
