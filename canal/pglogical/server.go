package pglogical

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

const oldestVersion = 150000 // all older ones have reached their end of life

// checkSettings returns an error if a setting of the server does not suffice.
func (s *session) checkSettings(ctx context.Context) error {
	rows, err := s.ask(ctx, `SELECT current_setting('server_version_num'), current_setting('server_version'), pg_is_in_recovery(),
		current_setting('wal_level'), current_setting('max_replication_slots'), current_setting('max_wal_senders')`)
	if err != nil {
		return err
	}
	r := rows[0]
	version, err := strconv.Atoi(r[0])
	switch {
	case err != nil:
		return err
	case version < oldestVersion:
		return setup("the server has version %s: it must be PostgreSQL 15 or later", r[1])
	case r[2] == "t":
		return errors.New("the server is a standby: Options.ConnString must name the primary")
	case r[3] != "logical":
		return setup("wal_level is %s: it must be logical (ALTER SYSTEM SET wal_level = logical, and restart the server)", r[3])
	case r[4] == "0":
		return setup("max_replication_slots is 0: it must have room for a slot")
	case r[5] == "0":
		return setup("max_wal_senders is 0: it must have room for a replication connection")
	}
	return nil
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
