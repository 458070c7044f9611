package pglogical

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

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

// sight tells which parts are visible by the last snapshot.
type sight struct {
	server *session
	seen   snapshot
}

// Visible implements visible.Server.
func (s *sight) Visible(parts []part) int {
	n := slices.IndexFunc(parts, func(p part) bool { return !s.seen.visible(p.xid) })
	if n < 0 {
		return len(parts)
	}
	return n
}

// Query implements visible.Server.
func (s *sight) Query(ctx context.Context, parts []part) (n int, err error) {
	if s.seen, err = s.server.snapshot(ctx); err != nil {
		return 0, err
	}
	return s.Visible(parts), nil
}

// Batch implements visible.Server.
func (s *sight) Batch(p part) event.Batch { return p.Batch }

// invisible is why a transaction may stay invisible for long.
const invisible = "it waits for a standby of synchronous_standby_names"
