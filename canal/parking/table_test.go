package parking

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// newTable is one with its table.
func newTable(t *testing.T, db *sqlx.DB) *Table {
	t.Helper()
	p, err := NewTable(db, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// list is all that is parked.
func list(t *testing.T, p *Table) []Row {
	t.Helper()
	rows, err := p.List(t.Context(), 0, maxList)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// What is parked in a table is listed in its order, page by page, and removed.
func TestTable(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		p, err := NewTable(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if p.Check(ctx) == nil || p.Park(ctx, Parked{}) == nil {
			t.Error("there is no table")
		}
		if _, err := p.List(ctx, 0, 10); err == nil {
			t.Error("there is no table")
		}
		for range 2 {
			if err := p.CreateTable(ctx); err != nil {
				t.Fatal(err)
			}
			if err := p.Check(ctx); err != nil {
				t.Fatal(err)
			}
		}
		at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
		all := []Parked{
			{Time: at, Binding: "handler search", Reason: "nie: é😀'\"\\", Change: update(row(1, nil), row(1, "é😀\xff\x00'\"\\"))},
			{Time: at, Reason: "at the same time", Message: []byte("{é😀'\"\\")},
			{Time: at.Add(time.Second), Change: update(row(1, nil), row(1, strings.Repeat("é\x00", 20<<20)))},
		}
		for range 2 { // again, as after a lost reply
			for _, q := range all {
				if err := p.Park(ctx, q); err != nil {
					t.Fatal(err)
				}
			}
		}
		rows := list(t, p)
		if len(rows) != len(all) {
			t.Fatalf("%d rows", len(rows))
		}
		for i, r := range rows {
			if want, _ := again(t, all[i]); r.Err != nil || !reflect.DeepEqual(r.Parked, want) ||
				r.ID < at.UnixMicro() {
				t.Errorf("%d: %v, %v", i, r.Parked.Reason, r.Err)
			}
		}
		var texts []string
		if err := db.Select(&texts, "SELECT parked FROM cacheaside_parked"); err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if strings.ContainsFunc(text, func(r rune) bool { return r >= 0x80 }) || len(text) > 4*MaxSize {
				t.Errorf("%d bytes, %.200s", len(text), text)
			}
		}
		second, err := p.List(ctx, rows[0].ID, 1)
		if err != nil || len(second) != 1 || second[0].ID != rows[1].ID {
			t.Errorf("%v, %v", second, err)
		}
		for _, limit := range []int{0, -1, maxList + 1} {
			if _, err := p.List(ctx, 0, limit); err == nil {
				t.Errorf("a limit of %d", limit)
			}
		}
		if n, err := p.Remove(ctx, rows[0].ID, rows[1].ID, 7); n != 2 || err != nil {
			t.Error(n, err)
		}
		if n, err := p.Remove(ctx); n != 0 || err != nil {
			t.Error(n, err)
		}
		if n, err := p.Remove(ctx, make([]int64, 3*maxRemove)...); n != 0 || err != nil {
			t.Error(n, err)
		}
		if err := p.Park(ctx, Parked{Reason: "now"}); err != nil {
			t.Fatal(err)
		}
		if rows := list(t, p); len(rows) != 2 || rows[1].Parked.Reason != "now" {
			t.Errorf("%d rows", len(rows))
		}
		if _, err := db.Exec(db.Rebind("INSERT INTO cacheaside_parked (id, parked) VALUES (1, ?)"),
			`{"time":"secret"}`); err != nil {
			t.Fatal(err)
		}
		if r := list(t, p)[0]; r.Err == nil || !strings.Contains(r.Err.Error(), "id 1:") ||
			strings.Contains(r.Err.Error(), "secret") {
			t.Error(r.Err)
		}
	})
}

// Many may park at the same time.
func TestTableOfMany(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		p := newTable(t, db)
		at := time.Now()
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				for m := range 5 {
					if err := p.Park(t.Context(), Parked{Time: at, Reason: strings.Repeat("x", 10*n+m)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if rows := list(t, p); len(rows) != 40 {
			t.Errorf("%d rows", len(rows))
		}
	})
}

// unknownDriver is a driver that wraps another: only its name shows the database.
type unknownDriver struct{}

func (unknownDriver) Open(string) (driver.Conn, error)             { return nil, driver.ErrBadConn }
func (unknownDriver) Connect(context.Context) (driver.Conn, error) { return nil, driver.ErrBadConn }
func (u unknownDriver) Driver() driver.Driver                      { return u }

// TestSchemaByName: the schema is for the same database as the placeholders.
func TestSchemaByName(t *testing.T) {
	sqlx.BindDriver("own-postgres", sqlx.DOLLAR)
	for name, want := range map[string]string{
		"pgx": " TEXT ", "postgres": " TEXT ", "pq-timeouts": " TEXT ", "cloudsqlpostgres": " TEXT ", "nrpostgres": " TEXT ", "cockroach": " TEXT ", "own-postgres": " TEXT ",
		"mysql": " LONGTEXT ", "nrmysql": " LONGTEXT ", "sqlite3": " LONGTEXT ", "nrsqlite3": " LONGTEXT ", "unknown": " LONGTEXT ",
	} {
		db := sqlx.NewDb(sql.OpenDB(unknownDriver{}), name)
		defer db.Close()
		p, err := NewTable(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(p.Schema(), want) {
			t.Errorf("%s: %s", name, p.Schema())
		}
	}
}

// A table that knows few characters takes all the same.
func TestTableInLatin1(t *testing.T) {
	db := sqlx.NewDb(testenv.SharedMariaDB(t).DB(t), "mysql")
	p, err := NewTable(db, &TableOptions{Table: "old"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(p.Schema() + " CHARACTER SET latin1"); err != nil {
		t.Fatal(err)
	}
	if err := p.Park(t.Context(), Parked{Reason: "é😀"}); err != nil {
		t.Fatal(err)
	}
	if rows := list(t, p); len(rows) != 1 || rows[0].Parked.Reason != "é😀" {
		t.Errorf("%v", rows)
	}
}

func TestNewTableChecks(t *testing.T) {
	db := sqlx.NewDb(sqlite.Open(t), "sqlite")
	if _, err := NewTable(db, &TableOptions{Table: "a; DROP"}); err == nil ||
		err.Error() != `canal: parking.TableOptions.Table "a; DROP": an identifier of at most 63 letters, digits and '_', or schema.table` {
		t.Error(err)
	}
	if _, err := NewTable(nil, nil); err == nil {
		t.Error("no database")
	}
}

// TestTableCount: as many as are parked.
func TestTableCount(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		p := newTable(t, db)
		for want := range int64(3) {
			if n, err := p.Count(t.Context()); n != want || err != nil {
				t.Errorf("%d, %v, want %d", n, err, want)
			}
			if err := p.Park(t.Context(), Parked{Reason: "r"}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
