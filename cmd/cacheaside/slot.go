package main

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

var slotStatusCommand = command{
	name: "slot status", args: "",
	short: "show how far a Consumer of PostgreSQL has come",
	long: `Compares the position that a canal.Consumer has saved in a table (canal.SQLCheckpoint) with
the log of a PostgreSQL server, and shows the replication slot of package pglogical: whether
it is in use, how much log the server keeps for it, whether the Consumer can continue from
it, and whether the server's settings are right; with --parking-table also the number of
parked messages. The DSN is that of the database whose changes the Consumer reads. It
changes nothing. Bytes of log contain the changes of all databases of the server.
Exit code 1: the Consumer cannot continue, or a setting of the server is wrong.
Exit code 3: no position is saved.`,
	example: "slot status --parking-table cacheaside_parked",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		s := &slots{consuming: consuming{tool: t}}
		s.register(flags)
		flags.StringVar(&s.slot, "slot", "cacheaside",
			"pglogical.Options.Slot: the `NAME` of the replication slot. Default: cacheaside")
		return s.run
	},
}

// slots is one run of the command.
type slots struct {
	consuming
	slot string
}

// shownSlots is the output of the command.
type shownSlots struct {
	Name     string       `json:"name"`
	Saved    *shownSaved  `json:"saved"`
	Server   shownPrimary `json:"server"`
	Slot     *shownSlot   `json:"slot"`
	Progress slotProgress `json:"progress"`
	Parked   *int64       `json:"parked,omitempty"`
	Settings []setting    `json:"settings"`
}

type shownPrimary struct {
	Version  string `json:"version"`
	Database string `json:"database"`
	LSN      string `json:"lsn"` // the end of its log

	system, timeline string
}

type shownSlot struct {
	Name      string `json:"name"`
	Active    bool   `json:"active"`
	Status    string `json:"wal_status"`
	Restart   string `json:"restart_lsn"`
	Confirmed string `json:"confirmed_flush_lsn"`
	Retained  int64  `json:"retained_bytes"`           // of log that the server keeps for it; -1: unknown
	Safe      *int64 `json:"safe_wal_bytes,omitempty"` // that the server can still write; nil: no limit

	plugin, database string
	twoPhase         bool
}

type slotProgress struct {
	State  string `json:"state"`
	Words  string `json:"words"`
	Behind int64  `json:"behind_bytes"`
}

func (s *slots) run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("slot status: it has no arguments")
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	shown := &shownSlots{Name: s.name}
	if err := s.onlyOn(ctx, sqloutbox.Postgres, "binlog status", func(ctx context.Context, db *sqlx.DB) (err error) {
		// A Consumer moves on while it is read: first the slot, then the position, then the log.
		ask := askerOf(db)
		if err := shown.read(ctx, ask, s.slot); err != nil {
			return err
		}
		if shown.Saved, shown.Parked, err = s.read(ctx); err != nil {
			return err
		}
		shown.Progress, err = shown.progress(ctx, ask)
		return err
	}); err != nil {
		return err
	}
	if err := s.show(shown, shown.rows); err != nil {
		return err
	}
	return verdictOf(shown.Settings, shown.Progress.State, shown.Progress.Words)
}

// logEnd is the end of the log. A standby has only what it has received.
const logEnd = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_flush_lsn() END"

// logTimeline is the timeline of that log. The timeline of the last checkpoint is an older one for
// some time after a promotion. A standby has no better one.
const logTimeline = "CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint()) ELSE ('x' " +
	"|| left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END"

const serverQuery = `SELECT current_setting('server_version') AS version, current_database()::text AS name,
	(` + logEnd + `)::text AS lsn, (` + logTimeline + `)::text AS timeline,
	(SELECT system_identifier FROM pg_control_system())::text AS system,
	current_setting('wal_level') AS level, current_setting('max_slot_wal_keep_size') AS keep`

const slotQuery = `SELECT plugin::text AS plugin, database::text AS name, two_phase::text AS two_phase,
	active::text AS active, wal_status, restart_lsn::text AS restart, confirmed_flush_lsn::text AS confirmed,
	coalesce(pg_wal_lsn_diff(` + logEnd + `, restart_lsn), -1)::bigint::text AS retained,
	safe_wal_size::text AS safe
	FROM pg_replication_slots WHERE slot_name = $1`

// behindQuery compares a position, $1, with the end of the log and with the slot's position, $2.
const behindQuery = `SELECT pg_wal_lsn_diff(` + logEnd + `, $1::text::pg_lsn)::bigint::text AS behind,
	coalesce(nullif($2::text, '')::pg_lsn > $1::text::pg_lsn, true)::text AS passed`

// read reads the state of the server and of the slot.
func (s *shownSlots) read(ctx context.Context, ask asker, slot string) error {
	rows, err := ask(ctx, serverQuery)
	if err != nil || len(rows) == 0 {
		return orNothing(err)
	}
	r := rows[0]
	s.Server = shownPrimary{Version: r["version"], Database: r["name"], LSN: r["lsn"], system: r["system"],
		timeline: r["timeline"]}
	s.Settings = append(s.Settings, setting{Name: "wal_level", Value: r["level"], OK: r["level"] == "logical",
		Needed: "it must be logical"},
		setting{Name: "max_slot_wal_keep_size", Value: r["keep"], OK: true})
	rows, err = ask(ctx, slotQuery, slot)
	if err != nil {
		return err
	}
	if len(rows) > 0 {
		s.Slot = newSlot(slot, rows[0])
		s.Settings = append(s.Settings, s.Slot.settings(s.Server.Database)...)
	}
	return nil
}

func newSlot(name string, r map[string]string) *shownSlot {
	s := &shownSlot{Name: name, Active: r["active"] == "true", Status: r["wal_status"], Restart: r["restart"],
		Confirmed: r["confirmed"], plugin: r["plugin"], database: r["name"], twoPhase: r["two_phase"] == "true"}
	s.Retained, _ = strconv.ParseInt(r["retained"], 10, 64)
	if safe, err := strconv.ParseInt(r["safe"], 10, 64); err == nil {
		s.Safe = &safe
	}
	return s
}

// settings returns the settings of the slot that prevent a Source from starting.
func (s *shownSlot) settings(database string) (wrong []setting) {
	for _, set := range []setting{
		{Name: "plugin", Value: s.plugin, OK: s.plugin == "pgoutput", Needed: "the slot must have the plugin pgoutput"},
		{Name: "database", Value: s.database, OK: s.database == database,
			Needed: "the slot belongs to another database than the DSN"},
		{Name: "two_phase", Value: "on", OK: !s.twoPhase,
			Needed: "prepared transactions would not be read: drop the slot, and the Source creates another one"},
	} {
		if !set.OK {
			wrong = append(wrong, set)
		}
	}
	return wrong
}

// slotPosition is a position of package pglogical: system, timeline, LSN, catalog, database.
var slotPosition = regexp.MustCompile(`^postgresql:([0-9]+):([0-9]{1,10}):([0-9A-F]{1,8}/[0-9A-F]{1,8}):[^:]*:(.*)$`)

// progress compares the saved position with the slot and the server.
func (s *shownSlots) progress(ctx context.Context, ask asker) (slotProgress, error) {
	if s.Saved == nil {
		return slotProgress{State: "none", Words: notSaved}, nil
	}
	p := slotPosition.FindStringSubmatch(string(s.Saved.Position))
	if p == nil {
		return slotProgress{State: "unreadable", Words: "it is not a position of package pglogical"}, nil
	}
	system, lsn, database := p[1], p[3], p[4]
	timeline, _ := strconv.ParseInt(p[2], 10, 64)
	current, err := strconv.ParseInt(s.Server.timeline, 10, 64)
	switch {
	case err != nil:
		return slotProgress{}, err
	case system != s.Server.system:
		return slotProgress{State: "lost", Words: "it belongs to another cluster, with the system identifier " +
			system}, nil
	case database != s.Server.Database:
		return slotProgress{State: "lost", Words: "it belongs to another database: " + quoted(database)}, nil
	case timeline > current:
		return slotProgress{State: "lost",
			Words: fmt.Sprintf("it is on timeline %d, and the server is on %d: the server was restored from a backup",
				timeline, current)}, nil
	case s.Slot == nil:
		return slotProgress{State: "lost", Words: "the slot does not exist"}, nil
	case s.Slot.Status == "lost":
		return slotProgress{State: "lost",
			Words: "the slot is invalid: the server has removed its log (max_slot_wal_keep_size, or " +
				"idle_replication_slot_timeout)"}, nil
	}
	rows, err := ask(ctx, behindQuery, lsn, s.Slot.Confirmed)
	if err != nil || len(rows) == 0 {
		return slotProgress{}, orNothing(err)
	}
	behind, err := strconv.ParseInt(rows[0]["behind"], 10, 64)
	switch {
	case err != nil:
		return slotProgress{}, err
	case behind < 0:
		return slotProgress{"ahead",
			"the log of the server ends before it: the server was restored from a backup, or is another one",
			behind}, nil
	case rows[0]["passed"] == "true":
		return slotProgress{"lost",
			"the slot has advanced past it: it was created again, or another consumer has used it", behind}, nil
	case timeline < current:
		return slotProgress{"promoted",
			"the server was promoted since: the Consumer checks its history, and replaces all bound tables",
			behind}, nil
	case behind == 0:
		return slotProgress{"equal", "all of the log is processed", 0}, nil
	}
	return slotProgress{"behind", fmt.Sprintf("%d bytes of log are not processed, or not saved as processed", behind),
		behind}, nil
}

func (s *shownSlots) rows(row func(...any)) {
	row("consumer", s.Name)
	s.Saved.rows(row)
	row("server", "PostgreSQL "+quoted(s.Server.Version), "database "+quoted(s.Server.Database))
	row("", quoted(s.Server.LSN), "the end of its log")
	if v := s.Slot; v == nil {
		row("slot", "none")
	} else {
		state := "no Consumer reads it"
		if v.Active {
			state = "a Consumer reads it"
		}
		row("slot", quoted(v.Name), state)
		row("", quoted(v.Confirmed), "confirmed")
		row("keeps", fmt.Sprintf("%d bytes of log", v.Retained), "wal_status "+quoted(v.Status))
		if v.Safe != nil {
			row("", fmt.Sprintf("%d more bytes, until it is lost", *v.Safe))
		}
	}
	row("progress", s.Progress.State, s.Progress.Words)
	if s.Parked != nil {
		row("parked", *s.Parked)
	}
	for _, set := range s.Settings {
		note := "as needed"
		switch {
		case !set.OK:
			note = "WRONG: " + set.Needed
		case strings.HasPrefix(set.Value, "-1"):
			note = "no limit: a Consumer that is down can fill the disk"
		}
		row(set.Name, quoted(set.Value), note)
	}
}
