package bloom

import (
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/bloom/internal/sqltable"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestTablePostgres: a table of PostgreSQL is read whole, also one with names that need quotes, and
// from any key on.
func TestTablePostgres(t *testing.T) {
	db := testenv.SharedPostgres(t).DB(t)
	run(t, db, `CREATE SCHEMA "Shop"`)
	run(t, db, `CREATE TABLE "Shop"."order" ("Id" BIGINT PRIMARY KEY, "user" VARCHAR(40) UNIQUE)`)
	var values, ids, names []string
	for i := range 2*sqltable.PageRows + 200 {
		values = append(values, fmt.Sprintf("%d, 'näme %05d'", i-5, i))
		ids, names = append(ids, strconv.Itoa(i-5)), append(names, fmt.Sprintf("näme %05d", i))
	}
	insert(t, db, `"Shop"."order"`, values)
	tx, err := sqlx.NewDb(db, "pgx").Beginx()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, on := range []Queryer{db, sqlx.NewDb(db, "pgx"), tx} {
		if got := all(t, Table[int64](on, "Shop.order", "Id"), ""); !slices.Equal(got, ids) {
			t.Errorf("%d ids of %d", len(got), len(ids))
		}
		if got := all(t, Table[string](on, "Shop.order", "user"), names[700]); !slices.Equal(got, names[701:]) {
			t.Errorf("%d names of %d", len(got), len(names)-701)
		}
	}
}

// TestTableColumnsOfPostgres: columns whose values are strings in Go are read whole, in pages.
func TestTableColumnsOfPostgres(t *testing.T) {
	db := testenv.SharedPostgres(t).DB(t)
	run(t, db, "CREATE EXTENSION IF NOT EXISTS citext")
	n := 0
	for column, value := range map[string]string{
		"BYTEA":            `decode(lpad(to_hex(i * 37), 8, '0') || 'ff00', 'hex')`,
		"UUID":             "md5(i::text)::uuid",
		"CITEXT":           "'Key' || lpad(i::text, 5, '0')",
		"VARCHAR(20)":      "'key' || lpad(i::text, 5, '0')",
		"CHAR(8)":          "'key' || lpad(i::text, 5, '0')",
		`TEXT COLLATE "C"`: "chr(200 + i % 100) || i",
	} {
		t.Run(column, func(t *testing.T) {
			table := fmt.Sprintf("column%d", n)
			n++
			run(t, db, fmt.Sprintf("CREATE TABLE %s (id %s PRIMARY KEY)", table, column))
			run(t, db, fmt.Sprintf("INSERT INTO %s SELECT %s FROM generate_series(1, %d) AS i", table, value,
				2*sqltable.PageRows+200))
			got := all(t, Table[string](db, table, "id"), "")
			if slices.Sort(got); len(slices.Compact(got)) != 2*sqltable.PageRows+200 {
				t.Errorf("%d keys", len(got))
			}
			// A rebuild that was interrupted resumes after a key, with a new Source.
			inOrder := all(t, Table[string](db, table, "id"), "")
			if rest := all(t, Table[string](db, table, "id"), inOrder[1500]); !slices.Equal(rest, inOrder[1501:]) {
				t.Errorf("%d keys after 1501", len(rest))
			}
		})
	}
}

// TestTableUnderRowSecurity: a filter is not built from a table when the role may not see all of
// its rows.
func TestTableUnderRowSecurity(t *testing.T) {
	p := testenv.SharedPostgres(t)
	db := p.DB(t)
	run(t, db, "CREATE TABLE owned (id BIGINT PRIMARY KEY)")
	run(t, db, "INSERT INTO owned VALUES (1), (2)")
	run(t, db, "ALTER TABLE owned ENABLE ROW LEVEL SECURITY")
	run(t, db, "CREATE POLICY one ON owned USING (id = 1)")
	if got := all(t, Table[int64](db, "owned", "id"), ""); len(got) != 2 {
		t.Errorf("the owner reads %q", got)
	}
	run(t, db, "CREATE ROLE bloom_reader LOGIN")
	t.Cleanup(func() { db.Exec("DROP OWNED BY bloom_reader; DROP ROLE bloom_reader") })
	run(t, db, "GRANT SELECT ON owned TO bloom_reader")
	run(t, db, "CREATE ROLE bloom_all LOGIN BYPASSRLS")
	t.Cleanup(func() { db.Exec("DROP OWNED BY bloom_all; DROP ROLE bloom_all") })
	run(t, db, "GRANT SELECT ON owned TO bloom_all")
	for role, want := range map[string]string{"bloom_reader": "row-level security", "bloom_all": ""} {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(t.Context(), "SET ROLE "+role); err != nil {
			t.Fatal(err)
		}
		var failed error
		for _, err := range Table[int64](asPostgres{conn}, "owned", "id")(t.Context(), "") {
			failed = err
		}
		if want == "" && failed != nil || want != "" && (failed == nil || !strings.Contains(failed.Error(), want)) {
			t.Errorf("%s: %v", role, failed)
		}
		if _, err := conn.ExecContext(t.Context(), "RESET ROLE"); err != nil {
			t.Fatal(err)
		}
	}
}

// asPostgres is one connection, recognised by the name of its driver.
type asPostgres struct{ *sql.Conn }

func (asPostgres) DriverName() string { return "pgx" }
