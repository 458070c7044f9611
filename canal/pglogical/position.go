package pglogical

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/cacheaside/cacheaside/canal/event"
)

const prefix = "postgresql:"

// position is a place in the log of a database.
type position struct {
	system   string // the system identifier of the cluster
	timeline int32
	lsn      pglogrepl.LSN // transactions whose commit record begins before it are processed
	catalog  string        // catalog.sum: what the catalog said about the needed tables
	database string
}

// text returns the text of a position, which the tool reads too (slot status).
func (p position) text() event.Position {
	return event.Position(fmt.Sprintf("%s%s:%d:%s:%s:%s", prefix, p.system, p.timeline, p.lsn, p.catalog, p.database))
}

// parse reads a position. For one that this package has not written, it returns an error that Is
// canal.ErrPositionLost.
func parse(p event.Position) (position, error) {
	text, ok := strings.CutPrefix(string(p), prefix)
	parts := strings.SplitN(text, ":", 5)
	if !ok || len(parts) != 5 {
		return position{}, lost("%.200q is not a position of PostgreSQL", p)
	}
	timeline, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil || timeline < 1 {
		return position{}, lost("%.200q has no timeline", p)
	}
	lsn, err := parseLSN(parts[2])
	if err != nil {
		return position{}, lost("%.200q has no LSN", p)
	}
	return position{system: parts[0], timeline: int32(timeline), lsn: lsn, catalog: parts[3], database: parts[4]}, nil
}

// parseLSN is stricter than pglogrepl.ParseLSN, which ignores the end of the text.
func parseLSN(text string) (pglogrepl.LSN, error) {
	high, low, ok := strings.Cut(text, "/")
	h, err := strconv.ParseUint(high, 16, 32)
	if err != nil || !ok {
		return 0, fmt.Errorf("%.40q is not an LSN", text)
	}
	l, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not an LSN", text)
	}
	return pglogrepl.LSN(h<<32 | l), nil
}

// follows returns an error if the log that ends at end does not contain the history up to p.
// history is the content of the history file of end's timeline; it is only read if the timelines
// differ.
func (p position) follows(end position, history string) error {
	switch {
	case p.system != end.system:
		return lost("it belongs to the cluster %.30q, and the server belongs to %s", p.system, end.system)
	case p.database != end.database:
		return lost("it belongs to the database %.70q, and this is %q", p.database, end.database)
	case p.timeline > end.timeline:
		return lost("it is on timeline %d, and the server is on %d: the server was restored from a backup", p.timeline,
			end.timeline)
	case p.timeline == end.timeline && p.lsn > end.lsn:
		return lost("it is %s, and the log ends at %s: the server was restored from a backup", p.lsn, end.lsn)
	case p.timeline == end.timeline:
		return nil
	}
	left, err := switchpoint(history, p.timeline)
	if err != nil {
		return lost("the server is on timeline %d: %w", end.timeline, err)
	}
	if p.lsn > left {
		return lost("it is %s on timeline %d, which the server left at %s: the new primary lacks transactions of the "+
			"former one", p.lsn, p.timeline, left)
	}
	return nil
}

// switchpoint returns where a server left a timeline, according to a history file. Each of its
// lines has a timeline, the LSN at which it ended, and a reason.
func switchpoint(history string, timeline int32) (pglogrepl.LSN, error) {
	for line := range strings.Lines(history) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != strconv.Itoa(int(timeline)) {
			continue
		}
		return parseLSN(fields[1])
	}
	return 0, fmt.Errorf("its history does not contain timeline %d", timeline)
}
