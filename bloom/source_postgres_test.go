package bloom

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestTablePostgres: a table of PostgreSQL is read whole, also one with names that need quotes, and
// from any key on.
func TestTablePostgres(t *testing.T) {
	db := testenv.SharedPostgres(t).DB(t)
	run(t, db, `CREATE SCHEMA "Shop"`)
	run(t, db, `CREATE TABLE "Shop"."order" ("Id" BIGINT PRIMARY KEY, "user" VARCHAR(40) UNIQUE)`)
	var values, ids, names []string
	for i := range 2*pageRows + 200 {
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
