package canal

import (
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestSQLCheckpointSessions: what a session has set does not matter. Above all, what was saved is
// committed.
func TestSQLCheckpointSessions(t *testing.T) {
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		m := e.Shared(t)
		on := func(dsn string) *SQLCheckpoint {
			db, err := sqlx.Open("mysql", dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			c, err := NewSQLCheckpoint(db, nil)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		other := on(m.DSN(t) + "&innodb_lock_wait_timeout=2")
		if err := other.CreateTable(t.Context()); err != nil {
			t.Fatal(err)
		}
		token := int64(0)
		for _, settings := range e.Sessions() {
			mine := on(m.SessionDSN(t, settings) + "&innodb_lock_wait_timeout=2")
			for _, by := range [][2]*SQLCheckpoint{{mine, other}, {other, mine}} {
				token++
				want := event.Position(settings)
				if err := by[0].Save(t.Context(), want, token); err != nil {
					t.Errorf("%s: %v", settings, err)
				}
				if got, err := by[1].Load(t.Context()); got != want || err != nil {
					t.Errorf("%s: %q, %v", settings, got, err)
				}
				if s, found, err := by[1].Read(t.Context()); s.Token != token || !found || err != nil {
					t.Errorf("%s: %+v, %v", settings, s, err)
				}
			}
		}
	})
}
