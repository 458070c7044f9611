package canal

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
)

func TestSQLCheckpoint(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		c, err := NewSQLCheckpoint(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Load(t.Context()); err == nil {
			t.Error("there is no table")
		}
		if err := c.Save(t.Context(), "x", 0); err == nil {
			t.Error("there is no table")
		}
		for range 2 {
			if err := c.CreateTable(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		testCheckpoint(t, c)
		other, err := NewSQLCheckpoint(db, &SQLCheckpointOptions{Name: "other"})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := other.Load(t.Context()); p != "" || err != nil {
			t.Errorf("%q, %v", p, err)
		}
	})
}

// Of many positions saved at the same time, the one with the greatest token remains.
func TestSQLCheckpointOfMany(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		c, err := NewSQLCheckpoint(db, &SQLCheckpointOptions{Name: "many"})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.CreateTable(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for token := range int64(8) {
			all.Go(func() {
				for range 10 {
					if err := c.Save(context.Background(), event.Position(strings.Repeat("x", int(token))),
						token); err != nil && !errors.Is(err, ErrSuperseded) {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if p, err := c.Load(t.Context()); p != "xxxxxxx" || err != nil {
			t.Errorf("%q, %v", p, err)
		}
	})
}

func TestNewSQLCheckpointChecks(t *testing.T) {
	db := sqlx.NewDb(sqlite.Open(t), "sqlite")
	for want, o := range map[string]SQLCheckpointOptions{
		`canal: SQLCheckpointOptions.Name "A b": 1 to 64 lower-case letters, digits, '_', '.' and '-'`:                      {Name: "A b"},
		`canal: SQLCheckpointOptions.Table "a; DROP": an identifier of at most 63 letters, digits and '_', or schema.table`: {Table: "a; DROP"},
		`canal: SQLCheckpointOptions.Table "a.b.c": an identifier of at most 63 letters, digits and '_', or schema.table`:   {Table: "a.b.c"},
		`canal: SQLCheckpointOptions.Name "` + strings.Repeat("x", 65) +
			`": 1 to 64 lower-case letters, digits, '_', '.' and '-'`: {Name: strings.Repeat("x", 65)},
	} {
		if _, err := NewSQLCheckpoint(db, &o); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := NewSQLCheckpoint(nil, nil); err == nil {
		t.Error("no database")
	}
}

// TestSQLCheckpointLook: a caller that looks sees the position with its token and its time.
func TestSQLCheckpointLook(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		c, err := NewSQLCheckpoint(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "cacheaside_checkpoint") {
			t.Errorf("without a table: %v", err)
		}
		if err := c.CreateTable(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, found, err := c.Read(t.Context()); found || s != (Saved{}) || err != nil {
			t.Errorf("of nothing: %+v, %v, %v", s, found, err)
		}
		if _, err := c.table.Exec(t.Context(), "INSERT INTO TABLE (name, token, place, saved) VALUES (?, 0, '', 0)",
			c.name); err != nil {
			t.Fatal(err)
		}
		if s, found, err := c.Read(t.Context()); found || s != (Saved{}) || err != nil {
			t.Errorf("of a first save that has not ended: %+v, %v, %v", s, found, err)
		}
		before := time.Now()
		if err := c.Save(t.Context(), "here", 7); err != nil {
			t.Fatal(err)
		}
		s, found, err := c.Read(t.Context())
		if !found || err != nil || s.Position != "here" || s.Token != 7 ||
			s.Time.Before(before.Truncate(time.Microsecond)) || s.Time.After(time.Now()) {
			t.Errorf("%+v, %v, %v", s, found, err)
		}
	})
}

// PostgreSQL has no MEDIUMTEXT.
func TestSchemaOfDialects(t *testing.T) {
	unconnected := func(driver, dsn string) *sql.DB {
		db, err := sql.Open(driver, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	mysql, postgres := unconnected("mysql", "user@tcp(127.0.0.1:1)/shop"), unconnected("pgx",
		"postgres://127.0.0.1:1/shop")
	for driver, c := range map[string]struct {
		db   *sql.DB
		want string
	}{
		"mysql":    {mysql, "place MEDIUMTEXT NOT NULL"},
		"sqlite":   {sqlite.Open(t), "place MEDIUMTEXT NOT NULL"},
		"pgx":      {postgres, "place TEXT NOT NULL"},
		"postgres": {postgres, "place TEXT NOT NULL"},
	} {
		want := c.want
		c, err := NewSQLCheckpoint(sqlx.NewDb(c.db, driver), nil)
		if err != nil || !strings.Contains(c.Schema(), want) {
			t.Errorf("%s: %v", driver, err)
		}
	}
}
