package pglogical

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// slot is the state of a replication slot.
type slot struct {
	exists           bool
	plugin, database string
	twoPhase         bool
	invalid          string        // why it is of no use any more; "": it is of use
	confirmed        pglogrepl.LSN // the server sends nothing from before
	retained         int64         // bytes of log that the server keeps for it; -1: unknown

	// The state of the server when the slot was read.
	logEnd  pglogrepl.LSN // the end of its log
	now     snapshot
	awaited string // the application_name of the Source, if commits wait for it; else ""
}

func (s *session) slot(ctx context.Context, name string) (slot, error) {
	rows, err := s.ask(ctx, `SELECT s.plugin, s.database, s.wal_status,
		coalesce(to_jsonb(s)->>'invalidation_reason', ''), s.confirmed_flush_lsn,
		coalesce(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn), -1)::bigint,
		pg_current_wal_flush_lsn(), pg_current_snapshot(),
		s.two_phase, current_setting('synchronous_standby_names'), current_setting('application_name')
		FROM pg_replication_slots s WHERE s.slot_name = $1`, name)
	if err != nil || len(rows) == 0 {
		return slot{retained: -1}, err
	}
	r := rows[0]
	is := slot{exists: true, plugin: r[0], database: r[1], twoPhase: r[8] == "t"}
	if isStandby(r[10], r[9]) {
		is.awaited = r[10]
	}
	if _, err := fmt.Sscan(r[5], &is.retained); err != nil {
		return slot{}, err
	}
	if is.logEnd, err = parseLSN(r[6]); err != nil {
		return slot{}, err
	}
	if is.now, err = parseSnapshot(r[7]); err != nil {
		return slot{}, err
	}
	switch is.invalid = whyInvalid(r[2], r[3]); {
	case is.invalid != "":
	case r[4] == "":
		is.invalid = "it has no position"
	default:
		is.confirmed, err = parseLSN(r[4])
	}
	return is, err
}

// whyInvalid returns why a slot is of no use any more, or "". walStatus and reason are the columns
// wal_status and invalidation_reason of pg_replication_slots.
func whyInvalid(walStatus, reason string) string {
	switch {
	case reason == "idle_timeout":
		return "nothing has read it for longer than idle_replication_slot_timeout"
	case walStatus == "lost":
		return strings.TrimSpace(
			"the server has removed its log (wal_status is lost; see max_slot_wal_keep_size) " + reason)
	}
	return ""
}

// decision says how to prepare a slot before the Source reads it.
type decision struct {
	drop, create bool
	start        pglogrepl.LSN // if it is not created
}

// decide returns what to do with a slot to read the changes after from, or after any position of
// the slot if from is nil. unreadable reports whether the slot is older than the publication.
func (s slot) decide(name string, from *position, database string, unreadable bool) (decision, error) {
	switch {
	case s.exists && (s.plugin != "pgoutput" || s.database != database):
		return decision{}, setup(
			"the slot %s has the plugin %q and belongs to the database %q: give another Options.Slot", name, s.plugin,
			s.database)
	case s.twoPhase:
		return decision{}, setup(
			"the slot %s has two_phase, so that prepared transactions would not be read: SELECT "+
				"pg_drop_replication_slot('%s'), and the Source creates another one", name, name)
	case from == nil && s.exists && (s.invalid != "" || unreadable):
		return decision{drop: true, create: true}, nil
	case from == nil && !s.exists:
		return decision{create: true}, nil
	case from == nil:
		return decision{start: s.confirmed}, nil
	case !s.exists:
		return decision{}, lost("the slot %s does not exist", name)
	case s.invalid != "":
		return decision{}, lost("the slot %s is invalid: %s", name, s.invalid)
	case unreadable:
		return decision{}, lost("the slot %s is older than the publication, so that its changes cannot be read: the "+
			"Source creates it again", name)
	case s.confirmed > from.lsn:
		return decision{}, lost("the slot %s has advanced to %s, past the position %s: it was created again, or "+
			"another consumer has used it", name, s.confirmed, from.lsn)
	}
	return decision{start: from.lsn}, nil
}

// prepare makes a slot ready to read the changes after from, and returns where to start.
func (s *Source) prepare(
	ctx context.Context, q *session, conn *pgconn.PgConn, from *position, end position,
) (pglogrepl.LSN, error) {
	name := s.options.Slot
	is, err := q.slot(ctx, name)
	if err != nil {
		return 0, err
	}
	d, err := is.decide(name, from, end.database, s.unreadable.Load())
	if err != nil || !d.create {
		return d.start, err
	}
	if d.drop {
		s.options.Logger.Warn("pglogical: dropping a slot that cannot be read, and creating it again", "slot", name,
			"reason", cmp.Or(is.invalid, "it is older than the publication"))
		if err := pglogrepl.DropReplicationSlot(ctx, conn, quote(name),
			pglogrepl.DropReplicationSlotOptions{}); err != nil {
			return 0, err
		}
	}
	waits := time.AfterFunc(s.options.Timeout/2, func() {
		s.options.Logger.Warn("pglogical: creating the slot waits for transactions that are running: look for old "+
			"ones in pg_stat_activity and pg_prepared_xacts", "slot", name)
	})
	defer waits.Stop()
	made, err := pglogrepl.ParseCreateReplicationSlot(conn.Exec(ctx, createStatement(name, q.version)))
	if err != nil {
		return 0, err
	}
	s.unreadable.Store(false)
	return parseLSN(made.ConsistentPoint)
}

// createStatement returns the replication command that creates a slot. A server that can copies the
// slot to its standbys, if their settings ask for that. A slot without FAILOVER is never copied.
func createStatement(name string, version int) string {
	options := "SNAPSHOT 'nothing'"
	if version >= failoverVersion {
		options += ", FAILOVER"
	}
	return "CREATE_REPLICATION_SLOT " + quote(name) + " LOGICAL pgoutput (" + options + ")"
}

// quote returns a name as an identifier of a replication command.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// start starts replication, with or without messages.
func (s *Source) start(ctx context.Context, conn *pgconn.PgConn, from pglogrepl.LSN, messages bool) error {
	publication := strings.ReplaceAll(quote(s.options.Publication), "'", "''")
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	// Without streaming and two_phase, which need later versions of the protocol, the server sends
	// transactions when they are committed, and stores large ones on its disk until then.
	args := []string{"proto_version '1'", "publication_names '" + publication + "'"}
	if messages {
		args = append(args, "messages 'true'")
	}
	return pglogrepl.StartReplication(ctx, conn, quote(s.options.Slot), from,
		pglogrepl.StartReplicationOptions{PluginArgs: args})
}
