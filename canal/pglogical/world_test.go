package pglogical

import (
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// world is a database with its own slot, and a publication "cacheaside" for all tables.
type world struct {
	sourcetest.World
	server *testenv.Postgres
	name   string // of the database and the slot
}

// shared returns a database on the shared server.
func shared(t *testing.T) *world { return worldOn(t, testenv.SharedPostgres(t)) }

// own returns a database on a server of the test's own.
func own(t *testing.T, settings ...string) *world {
	return worldOn(t, testenv.StartPostgres(t, settings...))
}

// ownFrom is own for a test of what the server has since a major version.
func ownFrom(t *testing.T, major int, settings ...string) *world {
	return worldOn(t, testenv.StartPostgresFrom(t, major, settings...))
}

func worldOn(t *testing.T, p *testenv.Postgres) *world {
	w := &world{sourcetest.World{T: t, DB: p.DB(t), Schema: "public"}, p, p.Database(t)}
	w.Do("CREATE PUBLICATION cacheaside FOR ALL TABLES")
	t.Cleanup(w.dropSlot) // otherwise the database cannot be dropped
	return w
}

func (w *world) dropSlot() {
	w.Helper()
	testenv.Eventually(w, "the slot is dropped", func() bool {
		_, err := w.DB.Exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = "+
			"$1", w.name)
		return err == nil
	})
}

// free waits until no process reads the slot. The server releases it some time after Run has ended.
func (w *world) free() {
	w.Helper()
	testenv.Eventually(w, "the slot is free", func() bool {
		return w.Ask("SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active", w.name) == "0"
	})
}

// Listen is World.Listen when the slot is free.
func (w *world) Listen(s canal.Source, need event.Need) *sourcetest.Listener {
	w.Helper()
	w.free()
	return w.World.Listen(s, need)
}

// Start is World.Start when the slot is free.
func (w *world) Start(s canal.Source, need event.Need) *sourcetest.Listener {
	w.Helper()
	w.free()
	return w.World.Start(s, need)
}

func (w *world) source(edit ...func(*Options)) *Source {
	w.Helper()
	o := Options{ConnString: w.server.DSN(w.T), Slot: w.name}
	for _, e := range edit {
		e(&o)
	}
	s, err := New(o)
	w.Check(err)
	return s
}
