package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// slotted is a world with a PostgreSQL database that contains a checkpoint, and a name for a slot.
type slotted struct {
	*world
	db         *sqlx.DB
	checkpoint *canal.SQLCheckpoint
	slot       string
}

func onSlot(t *testing.T, p *testenv.Postgres) *slotted {
	t.Helper()
	s := &slotted{world: &world{t, map[string]string{"CACHEASIDE_POSTGRES_DSN": p.DSN(t)}},
		db: sqlx.NewDb(p.DB(t), "pgx"), slot: p.Database(t)}
	var err error
	s.checkpoint, err = canal.NewSQLCheckpoint(s.db, nil)
	s.check(err)
	t.Cleanup(func() {
		s.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '" +
			s.slot + "'")
	})
	return s
}

func (s *slotted) exec(statement string) {
	s.Helper()
	_, err := s.db.Exec(statement)
	s.check(err)
}

func (s *slotted) ask(query string) (text string) {
	s.Helper()
	s.check(s.db.Get(&text, query))
	return text
}

// save saves a position at an LSN, in the format of package pglogical.
func (s *slotted) save(edit func(string) string) {
	s.Helper()
	position := fmt.Sprintf("postgresql:%s:1:%s:0123456789abcdef:%s",
		s.ask("SELECT system_identifier::text FROM pg_control_system()"),
		s.ask("SELECT pg_current_wal_flush_lsn()::text"), s.slot)
	if edit != nil {
		position = edit(position)
	}
	s.check(s.checkpoint.Save(s.Context(), event.Position(position), 3))
}

func (s *slotted) status(code int, args ...string) shownSlots {
	s.Helper()
	return parsed[shownSlots](s.world, code, append([]string{"slot", "status", "--slot", s.slot}, args...)...)
}

func TestSlotStatus(t *testing.T) {
	s := onSlot(t, testenv.SharedPostgres(t))
	s.fails(exitFailed, "cacheaside_checkpoint", "slot", "status")
	s.check(s.checkpoint.CreateTable(t.Context()))
	if got := s.status(exitAbsent); got.Saved != nil || got.Slot != nil || got.Progress.State != "none" {
		t.Errorf("without a position it shows %+v", got)
	}
	s.exec("SELECT pg_create_logical_replication_slot('" + s.slot + "', 'pgoutput')")
	s.save(nil)
	s.exec("CREATE TABLE t (id INT)")
	got := s.status(exitOK)
	if got.Progress.State != "behind" || got.Progress.Behind < 100 || got.Saved.Token != 3 || got.Saved.Time == nil ||
		got.Slot.Active || got.Slot.Retained < 100 || got.Slot.Confirmed == "" || got.Slot.Status != "reserved" ||
		got.Server.Database != s.slot || got.Parked != nil {
		t.Errorf("it shows %+v %+v", got, got.Slot)
	}
	p, err := parking.NewTable(s.db, nil)
	s.check(err)
	s.check(p.CreateTable(t.Context()))
	s.check(p.Park(t.Context(), parking.Parked{Reason: "CANARY-VALUE"}))
	people := s.ok("slot", "status", "--slot", s.slot, "--parking-table", "cacheaside_parked")
	s.says(people, "behind", "no Consumer reads it", "bytes of log", "parked", "wal_level", "as needed", "no limit",
		"token 3")
	if strings.Contains(people, "CANARY") {
		t.Error("it shows parked changes")
	}
	s.fails(exitAbsent, "", "slot", "status", "--slot", s.slot, "--name", "another")
	s.fails(exitUsage, "no arguments", "slot", "status", "more")
	s.fails(exitUsage, "help slot status", "binlog", "status")
	s.env["CHECKPOINT"] = s.env["CACHEASIDE_POSTGRES_DSN"]
	s.ok("slot", "status", "--slot", s.slot, "--checkpoint-dsn-env", "CHECKPOINT")
}

// A Consumer cannot continue from these positions, or with these slots.
func TestUnusableSlots(t *testing.T) {
	s := onSlot(t, testenv.SharedPostgres(t))
	s.check(s.checkpoint.CreateTable(t.Context()))
	lost := func(state, words string) {
		t.Helper()
		if got := s.status(exitFailed); got.Progress.State != state || !strings.Contains(got.Progress.Words, words) {
			t.Errorf("want %s, %q: %+v", state, words, got.Progress)
		}
	}
	s.save(nil)
	lost("lost", "does not exist")
	s.exec("SELECT pg_create_logical_replication_slot('" + s.slot + "', 'pgoutput')")
	lost("lost", "advanced")
	s.save(func(p string) string { return strings.Replace(p, "postgresql:", "postgresql:9", 1) })
	lost("lost", "another cluster")
	s.save(func(p string) string { return p + "\x1b[31m" })
	lost("lost", "another database")
	if people := s.call("slot", "status", "--slot", s.slot).out; !harmless(people) {
		t.Errorf("%q", people)
	}
	s.save(func(string) string { return "mariadb:0-1-1" })
	lost("unreadable", "not a position")
	s.save(func(p string) string { return strings.Replace(p, ":1:", ":1:FF", 1) })
	lost("ahead", "backup")
	s.save(func(p string) string { return strings.Replace(p, ":1:", ":2:", 1) })
	lost("lost", "timeline 2, and the server is on 1")
	s.exec("SELECT pg_drop_replication_slot('" + s.slot + "')")
	s.exec("SELECT pg_create_logical_replication_slot('" + s.slot + "', 'test_decoding')")
	s.save(nil)
	if got := s.call("slot", "status", "--slot", s.slot); got.code != exitFailed ||
		!strings.Contains(got.err, "pgoutput") {
		t.Errorf("another plugin: %+v", got)
	}
}

// A position from before a promotion is reported as such, unless it is lost.
func TestSlotStatusPromoted(t *testing.T) {
	p := testenv.StartPostgres(t)
	s := onSlot(t, p)
	s.check(s.checkpoint.CreateTable(t.Context()))
	s.exec("SELECT pg_create_logical_replication_slot('" + s.slot + "', 'pgoutput')")
	s.save(nil)
	p.NewTimeline(t)
	testenv.Eventually(t, "it accepts connections", func() bool { return s.db.Ping() == nil })
	if got := s.status(exitOK).Progress; got.State != "promoted" ||
		!strings.Contains(got.Words, "replaces all bound tables") || got.Behind <= 0 {
		t.Errorf("it shows %+v", got)
	}
	s.save(func(p string) string { return strings.Replace(p, ":1:", ":2:", 1) })
	if got := s.status(exitOK).Progress; got.State != "behind" {
		t.Errorf("on the server's timeline: %+v", got)
	}
	s.exec("SELECT pg_drop_replication_slot('" + s.slot + "')")
	if got := s.status(exitFailed).Progress; got.State != "lost" {
		t.Errorf("without a slot: %+v", got)
	}
}

// Flags select one of the two servers.
func TestWhichDatabase(t *testing.T) {
	w := &world{t, map[string]string{"CACHEASIDE_MYSQL_DSN": "user:word@tcp(127.0.0.1:1)/db",
		"CACHEASIDE_POSTGRES_DSN": "postgres://user:word@127.0.0.1:1/db"}}
	w.fails(exitUsage, "only one", "outbox", "ls")
	w.fails(exitUsage, "only one", "--mysql-dsn-file", "a", "--postgres-dsn-file", "b", "outbox", "ls")
	delete(w.env, "CACHEASIDE_MYSQL_DSN")
	w.fails(exitFailed, "127.0.0.1:1", "outbox", "ls")
	w.env["CACHEASIDE_POSTGRES_DSN"] = "postgres://user:CANARY-VALUE@[/db"
	w.fails(exitUsage, "CACHEASIDE_POSTGRES_DSN", "outbox", "ls")
	w.env["CACHEASIDE_POSTGRES_DSN"] = "postgres://user:CANARY-VALUE@127.0.0.1:1/db?sslmode=CANARY-VALUE"
	w.fails(exitUsage, "CACHEASIDE_POSTGRES_DSN", "outbox", "ls")
	w.env["CACHEASIDE_POSTGRES_DSN"] = "postgres://user:CANARY-VALUE@127.0.0.1:1/db"
	if o := w.fails(exitFailed, "127.0.0.1:1", "slot", "status"); canaries(o.out+o.err) != nil {
		t.Errorf("it shows the password: %s", o.err)
	}
	w.fails(exitFailed, "--postgres-dsn-file", "--postgres-dsn-file", "/nonexistent", "outbox", "ls")
}
