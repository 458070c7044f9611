package sqloutbox

import (
	"context"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// as returns the outbox on connections that have a new role, which grants gives its rights. {role}
// in grants is the name of the role.
func (t *outboxTest) as(role string, grants ...string) *Outbox {
	t.Helper()
	p := testenv.SharedPostgres(t)
	role += "_" + p.Database(t.TB) // roles belong to the server
	t.exec(t.db, "CREATE ROLE "+role)
	t.Cleanup(func() {
		t.db.Exec("DROP OWNED BY " + role)
		t.db.Exec("DROP ROLE " + role)
	})
	for _, grant := range grants {
		t.exec(t.db, strings.ReplaceAll(grant, "{role}", role))
	}
	config, err := pgx.ParseConfig(p.DSN(t.TB))
	t.check(err)
	db := sqlx.NewDb(stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET ROLE "+role)
		return err
	})), "pgx")
	t.Cleanup(func() { db.Close() })
	return t.outbox(db)
}

// TestPostgresLeastRights: the rights that docs/guides/database.md lists are enough.
func TestPostgresLeastRights(t *testing.T) {
	o := outboxOnPostgres(t)
	writer := o.as("writer", "GRANT INSERT, SELECT (namespace, id) ON cacheaside_outbox TO {role}")
	relay := o.as("relay", "GRANT SELECT, INSERT, UPDATE, DELETE ON cacheaside_outbox TO {role}")
	tx := o.begin(sqlx.NewDb(writer.db, "pgx"))
	o.check(writer.PutIn(o.ctx(), tx, textItem("in a transaction")))
	o.check(tx.Commit())
	o.check(writer.Put(o.ctx(), textItem("by itself")))
	items := o.eventually(relay, 2)
	o.same(items, "by itself", "in a transaction")
	o.check(relay.Later(o.ctx(), items[0]))
	o.check(relay.Done(o.ctx(), items[1]))
	if d, err := relay.Depth(o.ctx()); err != nil || d.Items != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := writer.Depth(o.ctx()); err == nil || !strings.Contains(err.Error(), "lacks a right") {
		t.Errorf("the depth that a writer may not read: %v", err)
	}
}

// TestMySQLLeastRights: so are those of MariaDB and MySQL, for a writer and a relay.
func TestMySQLLeastRights(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		o := outboxOn(t, e)
		user := "least_" + o.server.Database(t)
		o.exec(o.db, "CREATE USER "+user)
		t.Cleanup(func() { o.db.Exec("DROP USER " + user) })
		o.exec(o.db, "GRANT SELECT, INSERT, UPDATE, DELETE ON cacheaside_outbox TO "+user)
		dsn, err := mysql.ParseDSN(o.server.DSN(t))
		o.check(err)
		dsn.User = user
		db := o.open(dsn.FormatDSN())
		both := o.outbox(db)
		tx := o.begin(db)
		o.check(both.PutIn(o.ctx(), tx, textItem("in a transaction")))
		o.check(tx.Commit())
		o.check(both.Put(o.ctx(), textItem("by itself")))
		items := o.eventually(both, 2)
		o.check(both.Later(o.ctx(), items[0]))
		o.check(both.Done(o.ctx(), items[1]))
		if d, err := both.Depth(o.ctx()); err != nil || d.Items != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		o.exec(o.db, "REVOKE DELETE ON cacheaside_outbox FROM "+user)
		if err := both.Done(o.ctx(), items[1]); err == nil {
			t.Error("Done without the right to delete returned nil")
		}
	})
}

// TestPostgresRowSecurity: a relay whose role sees no rows of the outbox does not take it for
// empty.
func TestPostgresRowSecurity(t *testing.T) {
	o := outboxOnPostgres(t)
	o.exec(o.db, "ALTER TABLE cacheaside_outbox ENABLE ROW LEVEL SECURITY")
	o.exec(o.db, "CREATE POLICY inserts ON cacheaside_outbox FOR INSERT WITH CHECK (true)")
	all := "GRANT SELECT, INSERT, UPDATE, DELETE ON cacheaside_outbox TO {role}"
	blind := o.as("blind", all)
	tx := o.begin(sqlx.NewDb(blind.db, "pgx"))
	hidden := textItem("hidden")
	hidden.New = true // as Writer.Update does
	o.check(blind.PutIn(o.ctx(), tx, hidden))
	o.check(tx.Commit())
	_, claimed := blind.Claim(o.ctx(), 1, claimLong)
	_, depth := blind.Depth(o.ctx())
	_, list := blind.List(o.ctx(), 10)
	_, retry := blind.RetryAll(o.ctx())
	for what, err := range map[string]error{"Claim": claimed, "Depth": depth, "List": list, "RetryAll": retry} {
		if err == nil || !strings.Contains(err.Error(), "row-level security") ||
			!strings.Contains(err.Error(), "docs/guides/database.md") {
			t.Errorf("%s by a role that sees no rows: %v", what, err)
		}
	}
	o.same(o.eventually(o.as("bypasses", all, "ALTER ROLE {role} BYPASSRLS"), 1), "hidden")
	o.same(o.some(o.Outbox, 10)) // the owner's, but claimed

	// A relay reports it.
	told := &testenv.Log{}
	relay := o.relayed(blind, told)
	testenv.Eventually(t, "an alert", func() bool { return relay.Stats().Alerts > 0 })
	testenv.Eventually(t, "the cause in the log",
		func() bool { return strings.Contains(told.String(), "row-level security") })
}
