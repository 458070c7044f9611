package canal_test

import (
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestSearchPath: processes whose search_paths differ use the same checkpoint and the same parking.
// Names are case-sensitive.
func TestSearchPath(t *testing.T) {
	p := testenv.SharedPostgres(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	admin := p.DB(t)
	_, err := admin.Exec("CREATE SCHEMA tenant")
	must(err)
	for _, table := range []string{"", "Parked", "tenant.Parked"} {
		var checkpoints []*canal.SQLCheckpoint
		var parkings []*parking.Table
		for _, path := range []string{"tenant", "public", "nowhere"} {
			db, err := sqlx.Open("pgx", p.DSN(t)+"&search_path="+path)
			must(err)
			t.Cleanup(func() { db.Close() })
			name := table
			if table != "" {
				name += "Positions"
			}
			c, err := canal.NewSQLCheckpoint(db, &canal.SQLCheckpointOptions{Table: name})
			must(err)
			q, err := parking.NewTable(db, &parking.TableOptions{Table: table})
			must(err)
			must(c.CreateTable(t.Context()))
			must(q.CreateTable(t.Context()))
			checkpoints, parkings = append(checkpoints, c), append(parkings, q)
		}
		for n, c := range checkpoints {
			must(c.Save(t.Context(), event.Position(fmt.Sprint(n)), 1))
			must(parkings[n].Park(t.Context(), parking.Parked{Reason: "why"}))
			for m := range checkpoints {
				if got, err := checkpoints[m].Load(t.Context()); err != nil || got != event.Position(fmt.Sprint(n)) {
					t.Errorf("%q: %d saved, and %d loads %q, %v", table, n, m, got, err)
				}
				if got, err := parkings[m].Count(t.Context()); err != nil || got != int64(n+1) {
					t.Errorf("%q: %d parked, and %d counts %d, %v", table, n, m, got, err)
				}
			}
		}
	}
	var tables []string
	must(sqlx.NewDb(admin, "pgx").Select(&tables,
		"SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('tenant', 'public') ORDER BY 1"))
	if got := fmt.Sprint(tables); got != "[public.Parked public.ParkedPositions public.cacheaside_checkpoint "+
		"public.cacheaside_parked tenant.Parked tenant.ParkedPositions]" {
		t.Errorf("the tables are %s", got)
	}
}
