package pglogical

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestPositionText(t *testing.T) {
	p := position{system: "7", timeline: 2, lsn: 0x1_0000_0002, catalog: "abc", database: "a:b"}
	if p.text() != "postgresql:7:2:1/2:abc:a:b" {
		t.Error(p.text())
	}
	if q, err := parse(p.text()); q != p || err != nil {
		t.Error(q, err)
	}
	for _, text := range []event.Position{"", "mysql:1", "postgresql:", "postgresql:7:x:1/2:abc:db",
		"postgresql:7:0:1/2:abc:db", "postgresql:7:1:1/2x:abc:db", "postgresql:7:1:12:abc:db",
		"postgresql:7:1:100000000/2:abc:db"} {
		if _, err := parse(text); !errors.Is(err, canal.ErrPositionLost) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A log continues a position if it has all that was read before it.
func TestHistory(t *testing.T) {
	at := func(system string, timeline int32, lsn pglogrepl.LSN) position {
		return position{system: system, timeline: timeline, lsn: lsn, database: "db"}
	}
	history := "1\t0/10\tno recovery target specified\n\n2\t0/20\tno recovery target specified\n"
	for name, c := range map[string]struct {
		from, end position
		lost      bool
	}{
		"the same":            {at("a", 1, 5), at("a", 1, 5), false},
		"earlier":             {at("a", 1, 5), at("a", 1, 9), false},
		"a restored server":   {at("a", 1, 9), at("a", 1, 5), true},
		"another cluster":     {at("a", 1, 5), at("b", 1, 9), true},
		"an older timeline":   {at("a", 3, 5), at("a", 2, 9), true},
		"before the failover": {at("a", 1, 0x10), at("a", 3, 0x30), false},
		"lost in a failover":  {at("a", 1, 0x11), at("a", 3, 0x30), true},
		"a second failover":   {at("a", 2, 0x20), at("a", 3, 0x30), false},
		"lost in the second":  {at("a", 2, 0x21), at("a", 3, 0x30), true},
		"an unknown timeline": {at("a", 7, 1), at("a", 9, 0x30), true},
	} {
		if err := c.from.follows(c.end, history); errors.Is(err, canal.ErrPositionLost) != c.lost || !c.lost &&
			err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := at("a", 1, 5)
	other.database = "other"
	if err := other.follows(at("a", 1, 9), ""); !errors.Is(err, canal.ErrPositionLost) {
		t.Error(err)
	}
}

// What is done with a slot.
func TestDecide(t *testing.T) {
	good := slot{exists: true, plugin: "pgoutput", database: "db", confirmed: 5}
	bad, others, foreign, prepared := good, good, good, good
	prepared.twoPhase = true
	bad.invalid, others.plugin, foreign.database = "lost", "wal2json", "other"
	from := func(lsn pglogrepl.LSN) *position { return &position{lsn: lsn} }
	for name, c := range map[string]struct {
		slot slot
		from *position
		want decision
		err  error
	}{
		"none, new":         {slot{}, nil, decision{create: true}, nil},
		"none, known":       {slot{}, from(5), decision{}, canal.ErrPositionLost},
		"good, new":         {good, nil, decision{start: 5}, nil},
		"good, known":       {good, from(7), decision{start: 7}, nil},
		"good, the same":    {good, from(5), decision{start: 5}, nil},
		"good, has gone on": {good, from(4), decision{}, canal.ErrPositionLost},
		"bad, new":          {bad, nil, decision{drop: true, create: true}, nil},
		"bad, known":        {bad, from(7), decision{}, canal.ErrPositionLost},
		"others'":           {others, nil, decision{}, canal.ErrSetup},
		"of another":        {foreign, from(7), decision{}, canal.ErrSetup},
		"two_phase, new":    {prepared, nil, decision{}, canal.ErrSetup},
		"two_phase, known":  {prepared, from(7), decision{}, canal.ErrSetup},
	} {
		if got, err := c.slot.decide("x", c.from, "db", false); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A Run continues from a saved position, and the server keeps its log until that position is
// acknowledged.
func TestResume(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"})
	confirmed := func() string {
		return x.Ask("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1", x.name)
	}
	s := x.source()
	l := x.Listen(s, need)
	begin := l.Positions()[0]
	first := confirmed()
	x.Do("INSERT INTO users VALUES (1)", "INSERT INTO users VALUES (2)")
	l.Want("insert users: 1", "insert users: 2")
	var after event.Position
	for _, b := range l.Batches() {
		if len(b.Changes) > 0 && x.Text(b.Changes[0]) == "insert users: 1" {
			after = b.Position
		}
	}
	n := len(l.Positions())
	l.Until("three more positions", func() bool { return len(l.Positions()) >= n+3 }) // with each, a status was sent
	if got := confirmed(); got != first {
		t.Errorf("%s was confirmed before anything was saved", got)
	}
	if s.Retained() <= 0 {
		t.Error(s.Retained())
	}
	l.Stop()
	if s.Retained() != -1 {
		t.Error(s.Retained())
	}

	need.From = begin
	l = x.Listen(s, need)
	l.Want("insert users: 1", "insert users: 2")
	s.Saved(after)
	p, err := parse(after)
	x.Check(err)
	testenv.Eventually(x, "what was saved is confirmed", func() bool { return confirmed() == p.lsn.String() })
	l.Stop()

	need.From = after
	l = x.Listen(s, need)
	l.Want("insert users: 2")
	l.Stop()

	need.From = begin // the server has discarded what follows it
	if err := x.Start(s, need).Ended(); !errors.Is(err, canal.ErrPositionLost) ||
		!strings.Contains(err.Error(), x.name) {
		t.Error(err)
	}
}

// Positions that the server cannot continue.
func TestLostPositions(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"})
	l := x.Listen(x.source(), need)
	good := l.Positions()[0]
	l.Stop()
	p, err := parse(good)
	x.Check(err)
	for name, edit := range map[string]func(p *position){
		"another cluster":  func(p *position) { p.system = "1" },
		"another database": func(p *position) { p.database = "other" },
		"the future":       func(p *position) { p.lsn += 1 << 40 },
		"a later timeline": func(p *position) { p.timeline++ },
	} {
		other := p
		edit(&other)
		need.From = other.text()
		if err := x.Start(x.source(), need).Ended(); !errors.Is(err, canal.ErrPositionLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	need.From = good
	x.dropSlot()
	if err := x.Start(x.source(), need).Ended(); !errors.Is(err, canal.ErrPositionLost) ||
		!strings.Contains(err.Error(), "does not exist") {
		t.Error(err)
	}
	need.From = ""
	l = x.Listen(x.source(), need)
	x.Do("INSERT INTO users VALUES (1)")
	l.Want("insert users: 1")
}

// A slot whose log the server has removed is a lost position, and is created again after that.
func TestInvalidatedSlot(t *testing.T) {
	x := own(t, "max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB")
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE UNLOGGED TABLE nothing (id INT)")
	need := x.Need([]string{"users", "id"})
	l := x.Listen(x.source(), need)
	need.From = l.Positions()[0]
	l.Stop()
	testenv.Eventually(x, "the slot is lost", func() bool {
		x.Do("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))", "SELECT pg_switch_wal()", "CHECKPOINT")
		return x.Ask("SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", x.name) == "lost"
	})
	if err := x.Start(x.source(), need).Ended(); !errors.Is(err, canal.ErrPositionLost) ||
		!strings.Contains(err.Error(), "max_slot_wal_keep_size") {
		t.Error(err)
	}
	need.From = ""
	l = x.Listen(x.source(), need)
	x.Do("INSERT INTO users VALUES (1)")
	l.Want("insert users: 1")
}

// The same applies to a slot that was not read for longer than the server allows.
func TestIdleSlot(t *testing.T) {
	x := ownFrom(t, 18, "idle_replication_slot_timeout=1s")
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"})
	need.From = saved(x.Listen(x.source(), need))
	testenv.Eventually(x, "the slot is invalid", func() bool {
		x.Do("CHECKPOINT")
		return x.Ask("SELECT coalesce(invalidation_reason, '') FROM pg_replication_slots WHERE slot_name = $1",
			x.name) == "idle_timeout"
	})
	if err := x.Start(x.source(), need).Ended(); !errors.Is(err, canal.ErrPositionLost) ||
		!strings.Contains(err.Error(), "idle_replication_slot_timeout") {
		t.Error(err)
	}
	if _, err := NewOutbox(t.Context(), sqlx.NewDb(x.DB, "pgx"), newCache(t),
		&OutboxOptions{Slot: x.name}); err == nil || !strings.Contains(err.Error(), "idle_replication_slot_timeout") {
		t.Error(err)
	}
	need.From = ""
	l := x.Listen(x.source(), need)
	x.Do("INSERT INTO users VALUES (1)")
	l.Want("insert users: 1")
}

// A slot that another Source reads is an error that passes: a Consumer tries again.
func TestSlotInUse(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"})
	l := x.Listen(x.source(), need)
	err := x.World.Start(x.source(), need).Ended()
	if errors.Is(err, canal.ErrSetup) || errors.Is(err, canal.ErrPositionLost) ||
		!strings.Contains(err.Error(), "another process reads the slot "+x.name) {
		t.Error(err)
	}
	l.Stop()
	x.Listen(x.source(), need)
}
