package pglogical

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Versions of the server, in the form of server_version_num.
const (
	oldestVersion    = 150000 // all older ones have reached their end of life
	failoverVersion  = 170000 // copies slots to its standbys
	generatedVersion = 180000 // publishes generated columns
)

// checkSettings reads the version of the server. It returns an error if a setting does not suffice.
func (s *session) checkSettings(ctx context.Context) error {
	rows, err := s.ask(ctx, `SELECT current_setting('server_version_num'), current_setting('server_version'),
		pg_is_in_recovery(),
		current_setting('wal_level'), current_setting('max_replication_slots'), current_setting('max_wal_senders')`)
	if err != nil {
		return err
	}
	r := rows[0]
	s.version, err = strconv.Atoi(r[0])
	switch {
	case err != nil:
		return err
	case s.version < oldestVersion:
		return setup("the server has version %s: it must be PostgreSQL 15 or later", r[1])
	case r[2] == "t":
		return errors.New("the server is a standby: Options.ConnString must name the primary")
	case r[3] != "logical":
		return setup("wal_level is %s: it must be logical (ALTER SYSTEM SET wal_level = logical, and restart the "+
			"server)", r[3])
	case r[4] == "0":
		return setup("max_replication_slots is 0: it must have room for a slot")
	case r[5] == "0":
		return setup("max_wal_senders is 0: it must have room for a replication connection")
	}
	return nil
}

var (
	standbyQuorum = regexp.MustCompile(`(?i)^\s*(?:(?:FIRST|ANY)\s+)?"?\d+"?\s*\(`)
	standbyName   = regexp.MustCompile(`"(?:[^"]|"")*"|[^\s,()"]+`)
)

// isStandby reports whether synchronous_standby_names includes an application. Its forms are
// "a, b", "FIRST n (a, b)", "n (a, b)" and "ANY n (a, b)". The server shows sync_state only to
// members of pg_read_all_stats.
func isStandby(application, names string) bool {
	names = strings.TrimPrefix(names, standbyQuorum.FindString(names))
	for _, name := range standbyName.FindAllString(names, -1) {
		if name[0] == '"' {
			name = strings.ReplaceAll(name[1:len(name)-1], `""`, `"`)
		}
		if name == "*" || strings.EqualFold(name, application) {
			return true
		}
	}
	return false
}

// identify returns the end of the log of the server.
func identify(ctx context.Context, conn *pgconn.PgConn) (position, error) {
	is, err := pglogrepl.IdentifySystem(ctx, conn)
	return position{system: is.SystemID, timeline: is.Timeline, lsn: is.XLogPos, database: is.DBName}, err
}

// checkHistory returns an error that Is canal.ErrPositionLost if the log that ends at end does not
// continue from.
func checkHistory(ctx context.Context, conn *pgconn.PgConn, from, end position) error {
	var history pglogrepl.TimelineHistoryResult
	if from.system == end.system && from.timeline < end.timeline {
		var err error
		if history, err = pglogrepl.TimelineHistory(ctx, conn, end.timeline); err != nil {
			return err
		}
	}
	return from.follows(end, string(history.Content))
}
