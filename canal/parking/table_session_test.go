package parking

import (
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestTableSessions: what a session has set does not matter. Above all, what was parked is
// committed.
func TestTableSessions(t *testing.T) {
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		m := e.Shared(t)
		on := func(dsn string) *Table {
			db, err := sqlx.Open("mysql", dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			return newTable(t, db)
		}
		other := on(m.DSN(t) + "&innodb_lock_wait_timeout=2")
		for _, settings := range e.Sessions() {
			mine := on(m.SessionDSN(t, settings) + "&innodb_lock_wait_timeout=2")
			for _, by := range [][2]*Table{{mine, other}, {other, mine}} {
				var ids []int64
				if err := by[0].Check(t.Context()); err != nil {
					t.Errorf("%s: %v", settings, err)
				}
				one := Parked{Time: time.Now()}
				for _, p := range []Parked{one, one, {Time: one.Time.Add(time.Second)}} {
					if err := by[0].Park(t.Context(), p); err != nil {
						t.Errorf("%s: %v", settings, err)
					}
				}
				for _, row := range list(t, by[1]) {
					ids = append(ids, row.ID)
				}
				if n, err := by[1].Count(t.Context()); n != 2 || len(ids) != 2 || err != nil {
					t.Errorf("%s: %d rows, listed %d, %v", settings, n, len(ids), err)
				}
				if n, err := by[0].Remove(t.Context(), ids...); n != 2 || err != nil {
					t.Errorf("%s: %d removed, %v", settings, n, err)
				}
				if n, err := by[1].Count(t.Context()); n != 0 || err != nil {
					t.Errorf("%s: %d rows, %v", settings, n, err)
				}
			}
		}
	})
}
