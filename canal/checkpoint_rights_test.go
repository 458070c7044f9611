package canal_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestRowSecurityOfCheckpoint: a position that the role of a consumer does not see does not count
// as missing, and parked changes that it does not see do not count as none. The rights that
// docs/guides/database.md lists are enough for a role that sees all rows.
func TestRowSecurityOfCheckpoint(t *testing.T) {
	p := testenv.SharedPostgres(t)
	admin := sqlx.NewDb(p.DB(t), "pgx")
	exec := func(statement string) {
		t.Helper()
		if _, err := admin.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	open := func(db *sqlx.DB) (*canal.SQLCheckpoint, *parking.Table) {
		c, err := canal.NewSQLCheckpoint(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parking.NewTable(db, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, q
	}
	owner, ownersParking := open(admin)
	for _, err := range []error{owner.CreateTable(t.Context()), ownersParking.CreateTable(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	role := "consumer_" + p.Database(t)
	exec("CREATE ROLE " + role)
	t.Cleanup(func() { admin.Exec("DROP OWNED BY " + role); admin.Exec("DROP ROLE " + role) })
	exec("GRANT SELECT, INSERT, UPDATE ON cacheaside_checkpoint TO " + role)
	exec("GRANT SELECT, INSERT, DELETE ON cacheaside_parked TO " + role)
	config, err := pgx.ParseConfig(p.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	db := sqlx.NewDb(stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET ROLE "+role)
		return err
	})), "pgx")
	t.Cleanup(func() { db.Close() })
	c, q := open(db)
	if err := c.Save(t.Context(), "here", 1); err != nil {
		t.Fatal(err)
	}
	if position, err := c.Load(t.Context()); position != "here" || err != nil {
		t.Fatal(position, err)
	}
	if err := q.Park(t.Context(), parking.Parked{Reason: "why"}); err != nil {
		t.Fatal(err)
	}

	for _, table := range []string{"cacheaside_checkpoint", "cacheaside_parked"} {
		exec("ALTER TABLE " + table + " ENABLE ROW LEVEL SECURITY")
		exec("CREATE POLICY inserts ON " + table + " FOR INSERT WITH CHECK (true)")
	}
	_, loaded := c.Load(t.Context())
	_, listed := q.List(t.Context(), 0, 10)
	for what, err := range map[string]error{"Load": loaded, "Save": c.Save(t.Context(), "there", 1), "List": listed} {
		if err == nil || !strings.Contains(err.Error(), "row-level security") {
			t.Errorf("%s of rows that the role does not see: %v", what, err)
		}
	}
}
