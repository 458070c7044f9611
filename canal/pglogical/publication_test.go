package pglogical

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
)

// replaced waits until a table was replaced n times.
func replaced(l *sourcetest.Listener, what string, n int) {
	l.Helper()
	l.Until(what, func() bool { return counts(l, "replace users") >= n })
}

// saved waits for a position after all that was delivered, and ends the Run.
func saved(l *sourcetest.Listener) event.Position {
	l.Helper()
	l.Until("a position after it", func() bool { return l.Batches()[len(l.Batches())-1].Position != "" })
	at := l.Positions()
	l.Stop()
	return at[len(at)-1]
}

// While a publication lacks a table or an operation, changes are missing from the log. When it has
// them again, it looks as before.
func TestPublicationIsChangedAndRestored(t *testing.T) {
	for name, c := range map[string]struct {
		create        bool // Options.CreatePublication, which restores it
		away, restore string
	}{
		"a table":            {away: "ALTER PUBLICATION cacheaside DROP TABLE users", restore: "ALTER PUBLICATION cacheaside ADD TABLE users"},
		"a table, by itself": {create: true, away: "ALTER PUBLICATION cacheaside DROP TABLE users"},
		"operations":         {away: "ALTER PUBLICATION cacheaside SET (publish = 'insert')", restore: "ALTER PUBLICATION cacheaside SET (publish = 'insert, update, delete, truncate')"},
		"a schema":           {away: "ALTER PUBLICATION cacheaside SET TABLES IN SCHEMA other", restore: "ALTER PUBLICATION cacheaside SET TABLES IN SCHEMA public"},
		"all of it":          {away: "DROP PUBLICATION cacheaside", restore: "CREATE PUBLICATION cacheaside FOR TABLE users"},
	} {
		t.Run(name, func(t *testing.T) {
			x := shared(t)
			x.Do("CREATE SCHEMA other", "CREATE TABLE users (id INT PRIMARY KEY, n INT)",
				"CREATE TABLE kept (id INT PRIMARY KEY)", "INSERT INTO users VALUES (1, 1)",
				"DROP PUBLICATION cacheaside", "CREATE PUBLICATION cacheaside FOR TABLE users")
			if name == "a schema" {
				x.Do("ALTER PUBLICATION cacheaside SET TABLES IN SCHEMA public")
			}
			source := x.source(func(o *Options) { o.CreatePublication = c.create })
			need := x.Need([]string{"users", "id"})
			l := x.Listen(source, need)
			if name != "all of it" || x.server.Major(t) >= 18 {
				// older servers end the replication without its publication
				change := func() {
					tx, err := x.DB.Begin() // so that the Source does not see it in between
					x.Check(err)
					for _, s := range []string{c.away, "UPDATE users SET n = 2", c.restore} {
						_, err = tx.Exec(s)
						x.Check(err)
					}
					x.Check(tx.Commit())
				}
				change()
				replaced(l, "it was changed while the Source runs", 1)
			}
			need.From = saved(l)
			x.Do(c.away, "UPDATE users SET n = 3")
			if c.restore != "" {
				x.Do(c.restore)
			}
			replaced(x.Listen(source, need), "it was changed while no Source ran", 1)
		})
	}
}

// A change of other tables of the publication is none of the bound one.
func TestOtherTablesOfThePublication(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)",
		"DROP PUBLICATION cacheaside", "CREATE PUBLICATION cacheaside FOR TABLE users")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("ALTER PUBLICATION cacheaside ADD TABLE other", "ALTER TABLE users ADD n INT")
	l.Want("alter users") // the Source has seen both
}

// A table that was not logged for a while, or had another name, looks as before.
func TestTableIsChangedAndRestored(t *testing.T) {
	const unlogged = "ALTER TABLE users SET UNLOGGED; UPDATE users SET n = n + 1; ALTER TABLE users SET LOGGED"
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT) ", "CREATE TABLE two (LIKE users INCLUDING ALL)",
		"INSERT INTO users VALUES (1, 1)")
	need := x.Need([]string{"users", "id"})
	l := x.Listen(x.source(), need)
	x.Do("BEGIN; " + unlogged + "; COMMIT")
	replaced(l, "not logged while the Source runs", 1)
	need.From = saved(l)
	for _, s := range []string{unlogged,
		"ALTER TABLE users RENAME TO old; ALTER TABLE two RENAME TO users; ALTER TABLE users RENAME TO two; ALTER " +
			"TABLE old RENAME TO users"} {
		x.Do(s)
		l = x.Listen(x.source(), need)
		replaced(l, "while no Source ran: "+s, 1)
		need.From = saved(l)
	}
	l = x.Listen(x.source(), need)
	x.Do("BEGIN; ALTER TABLE users RENAME TO old; ALTER TABLE two RENAME TO users; ALTER TABLE users RENAME TO two; " +
		"ALTER TABLE old RENAME TO users; COMMIT")
	l.Want("alter users")
}

// A partition that was detached for a while is not published for that time.
func TestPartitionIsDetachedAndAttached(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY) PARTITION BY RANGE (id)",
		"CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (0) TO (10)", "DROP PUBLICATION cacheaside",
		"CREATE PUBLICATION cacheaside FOR TABLE users")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("BEGIN; ALTER TABLE users DETACH PARTITION users_1; INSERT INTO users_1 VALUES (1); ALTER TABLE users " +
		"ATTACH PARTITION users_1 FOR VALUES FROM (0) TO (10); COMMIT")
	replaced(l, "it is another partition", 1)
}

// What a server does by itself, and all other things that change no row, is no DDL.
func TestMaintenanceIsNoDDL(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT)",
		"INSERT INTO users SELECT n, n FROM generate_series(1, 1000) n")
	need := x.Need([]string{"users", "id"})
	sum := func() string {
		conn, err := x.source().connect(t.Context())
		x.Check(err)
		defer closeNow(conn)
		c, err := (&session{timeout: time.Minute, conn: conn}).catalog(t.Context(), "cacheaside", need)
		x.Check(err)
		return c.sum
	}
	before := sum()
	for _, s := range []string{"DELETE FROM users WHERE id > 500", "VACUUM users", "ANALYZE users",
		"VACUUM (FREEZE, ANALYZE) users", "CREATE INDEX ON users (n)", "REINDEX TABLE users", "VACUUM FREEZE pg_class",
		"VACUUM FULL pg_class", "VACUUM FREEZE pg_publication"} {
		x.Do(s)
		if sum() != before {
			t.Errorf("%s changes the catalog", s)
		}
	}
	x.Do("ALTER TABLE users SET UNLOGGED")
	if sum() == before {
		t.Error("this shows nothing")
	}
}
