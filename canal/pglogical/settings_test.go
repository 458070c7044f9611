package pglogical

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// refused runs a Source that must be refused with an error that has these words.
func (w *world) refused(need event.Need, words ...string) {
	w.Helper()
	l := w.Start(w.source(), need)
	w.IsSetup(l.Ended(), words...)
}

// What would hide changes, or make keys impossible, is an error that names it.
func TestSetup(t *testing.T) {
	for name, c := range map[string]struct {
		do    string
		need  []string
		words []string
	}{
		"no publication":       {"DROP PUBLICATION cacheaside", []string{"users", "id"}, []string{"publication cacheaside does not exist", `CREATE PUBLICATION "cacheaside" FOR TABLE "public"."users"`}},
		"operations":           {"ALTER PUBLICATION cacheaside SET (publish = 'insert, update, delete')", []string{"users", "id"}, []string{"all operations", "truncate"}},
		"a table":              {"DROP PUBLICATION cacheaside; CREATE PUBLICATION cacheaside FOR TABLE other", []string{"users", "id"}, []string{"lacks the table public.users", `ADD TABLE "public"."users"`}},
		"a row filter":         {"DROP PUBLICATION cacheaside; CREATE PUBLICATION cacheaside FOR TABLE users WHERE (id > 5)", []string{"users", "id"}, []string{"row filter", "public.users"}},
		"a column list":        {"DROP PUBLICATION cacheaside; CREATE PUBLICATION cacheaside FOR TABLE users (id); ALTER TABLE users REPLICA IDENTITY FULL", []string{"users", "email"}, []string{"column list", "public.users", "email"}},
		"identity":             {"ALTER TABLE users DROP COLUMN twice", []string{"users", "email"}, []string{"REPLICA IDENTITY", "public.users", "(id)", "email", `ALTER TABLE "public"."users" REPLICA IDENTITY FULL`}},
		"identity NOTHING":     {"ALTER TABLE users REPLICA IDENTITY NOTHING", []string{"users", "id"}, []string{"no replica identity", "public.users"}},
		"no primary key":       {"", []string{"other", "id"}, []string{"no replica identity", "public.other"}},
		"identity of an index": {"ALTER TABLE users REPLICA IDENTITY USING INDEX users_n_key", []string{"users", "id"}, []string{"REPLICA IDENTITY", "(n)"}},
		"a generated column":   {"ALTER TABLE users REPLICA IDENTITY FULL", []string{"users", "twice"}, []string{"twice", "generated"}},
		"no column":            {"", []string{"users", "ident"}, []string{"no column ident"}},
		"two spellings":        {`ALTER TABLE users ADD COLUMN "ID" INT`, []string{"users", "id"}, []string{"differ in case"}},
		"a partition":          {"ALTER PUBLICATION cacheaside SET (publish_via_partition_root)", []string{"part_1", "id"}, []string{"publish_via_partition_root", "public.part_1", "bind public.part"}},
		"one partition":        {"ALTER TABLE part_2 REPLICA IDENTITY NOTHING", []string{"part", "id"}, []string{"no replica identity", "public.part_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := shared(t)
			x.Do("CREATE TABLE users (id INT PRIMARY KEY, email TEXT, n INT NOT NULL UNIQUE, twice INT GENERATED "+
				"ALWAYS AS (n * 2) STORED)", "CREATE TABLE other (id INT)",
				"CREATE TABLE part (id INT PRIMARY KEY) PARTITION BY RANGE (id)",
				"CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
				"CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)")
			if c.do != "" {
				x.Do(c.do)
			}
			x.refused(x.Need(c.need), c.words...)
		})
	}
}

// The same while it runs: what hides changes does not go unnoticed.
func TestPublicationIsChanged(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("ALTER PUBLICATION cacheaside SET (publish = 'insert')")
	x.IsSetup(l.Ended(), "all operations")
}

// A handler needs no key.
func TestHandlerOfATableWithoutKeys(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE log (id INT, twice INT GENERATED ALWAYS AS (id * 2) STORED)")
	l := x.Listen(x.source(), x.Need([]string{"log"}))
	x.Do("INSERT INTO log VALUES (1)")
	l.Want("insert log: 1")
}

// The settings of servers.
func TestServerSetup(t *testing.T) {
	for name, c := range map[string]struct {
		settings []string
		words    []string
	}{
		"wal_level":             {[]string{"wal_level=replica"}, []string{"wal_level is replica", "logical"}},
		"max_replication_slots": {[]string{"max_replication_slots=0"}, []string{"max_replication_slots"}},
		"max_wal_senders":       {[]string{"max_wal_senders=0"}, []string{"max_wal_senders"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := testenv.StartPostgres(t, c.settings...)
			x := &world{sourcetest.World{T: t, DB: p.DB(t), Schema: "public"}, p, "none"}
			x.Do("CREATE PUBLICATION cacheaside FOR ALL TABLES")
			x.refused(x.Need([]string{"users", "id"}), c.words...)
		})
	}
}

// A server whose slots are all used says so.
func TestNoSlotLeft(t *testing.T) {
	x := own(t, "max_replication_slots=1", "max_wal_senders=2")
	x.Do("SELECT pg_create_physical_replication_slot('other')")
	x.refused(x.Need([]string{"users", "id"}), "max_replication_slots")
	x.Do("SELECT pg_drop_replication_slot('other')")
}

// What the user may not do is an error. Access to the tables is not needed.
func TestPrivileges(t *testing.T) {
	x := shared(t)
	role := x.name + "_user"
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE ROLE "+role+" LOGIN")
	x.Cleanup(func() { x.Do("DROP ROLE " + role) })
	as := func(o *Options) { o.ConnString = strings.Replace(o.ConnString, "postgres@", role+"@", 1) }
	need := x.Need([]string{"users", "id"})
	x.IsSetup(x.Start(x.source(as), need).Ended(), "REPLICATION", role)
	x.Do("ALTER ROLE " + role + " REPLICATION")
	l := x.Listen(x.source(as), need)
	x.Do("INSERT INTO users VALUES (1)")
	l.Want("insert users: 1")
	l.Stop()
	x.Do("DROP PUBLICATION cacheaside")
	x.IsSetup(x.Start(x.source(as, func(o *Options) { o.CreatePublication = true }), need).Ended(),
		"Options.CreatePublication", "permission denied")
	x.IsSetup(x.Start(x.source(func(o *Options) { o.ConnString = strings.Replace(o.ConnString, x.name, "none", 1) }),
		need).Ended(), "none")
	x.IsSetup(x.Start(x.source(
		func(o *Options) { o.ConnString = strings.Replace(o.ConnString, "postgres@", "nobody@", 1) }), need).Ended(),
		"nobody")
}

// The publication is created if that is wanted, and gets the tables that it lacks, also later.
func TestCreatePublication(t *testing.T) {
	x := shared(t)
	name := `it's "mine"`
	create := func(o *Options) { o.CreatePublication, o.Publication = true, name }
	need := x.Need([]string{"users", "id"}, []string{"orders", "id"}, []string{"later", "id"})
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
	l := x.Listen(x.source(create), need)
	x.Do("INSERT INTO users VALUES (1)", "INSERT INTO other VALUES (1)")
	l.Want("insert users: 1")
	x.Do("CREATE TABLE orders (id INT PRIMARY KEY)")
	l.Want("insert users: 1", "replace orders")
	x.Do("INSERT INTO orders VALUES (2)")
	l.Want("insert users: 1", "replace orders", "insert orders: 2")
	l.Stop()
	if all := x.Ask("SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_publication_tables WHERE pubname = "+
		"$1", name); all != "orders users" {
		t.Error(all)
	}
}

// A slot that is older than the publication cannot be read before PostgreSQL 18. The error says
// what to do. Later servers leave out what is older than the publication. A Consumer invalidates
// all keys when it begins without a position.
func TestSlotOlderThanPublication(t *testing.T) {
	x := shared(t)
	x.Do("DROP PUBLICATION cacheaside", "CREATE TABLE users (id INT PRIMARY KEY)",
		"SELECT pg_create_logical_replication_slot('"+x.name+
			"', 'pgoutput')", "INSERT INTO users VALUES (1)", "CREATE PUBLICATION cacheaside FOR ALL TABLES")
	l := x.Start(x.source(), x.Need([]string{"users", "id"}))
	if x.server.Major(t) < 18 {
		x.IsSetup(l.Ended(), "older than the publication", "pg_drop_replication_slot('"+x.name+"')")
		return
	}
	x.Do("INSERT INTO users VALUES (2)")
	l.Want("insert users: 2")
}

// The Source does not change a slot of another plugin.
func TestSlotOfOthers(t *testing.T) {
	x := shared(t)
	x.Do("SELECT pg_create_logical_replication_slot('" + x.name + "', 'test_decoding')")
	x.refused(x.Need([]string{"users", "id"}), "test_decoding", "Options.Slot")
}

// A commit must not wait for the Source, which waits for the commit.
func TestSynchronousStandby(t *testing.T) {
	x := own(t)
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	x.IsSetup(l.Ended(), "synchronous_standby_names")
	x.Do("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()") // or the database cannot be dropped
}

// Tables that do not exist, or whose changes are not in the log, are reported.
func TestMissingTables(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE VIEW people AS SELECT id FROM users",
		"CREATE UNLOGGED TABLE fast (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"Users", "id"}, []string{"people", "id"}, []string{"fast", "id"},
		[]string{"later", "id"}))
	missing := l.Batches()[0].Missing
	for name, want := range map[string]string{"Users": "the database has public.users: table names are case-sensitive",
		"people": "it is a view: bind the tables that it reads", "fast": "it is UNLOGGED", "later": "the database has no such table"} {
		if got := missing[x.Table(name)]; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	x.Do("CREATE TABLE later (id INT PRIMARY KEY)")
	l.Want("replace later")
	x.Do("INSERT INTO later VALUES (1)")
	l.Want("replace later", "insert later: 1")
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"Options.ConnString is empty":   {},
		`Options.Slot "My-Slot"`:        {ConnString: "host=x", Slot: "My-Slot"},
		"Options.Publication":           {ConnString: "host=x", Publication: strings.Repeat("x", 64)},
		"Options.Timeout 1ns: at least": {ConnString: "host=x", Timeout: 1},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%v; want %s", err, want)
		}
	}
	for _, s := range []string{"postgres://x:secret@[/", "postgres://u:se/cret@h", "postgres://u:secret#x@h",
		"postgres://h?password=secret&port=x", `host=h password=sec\ ret port=x`, "host=h password=sec ret",
		"host=h password='secret"} {
		_, err := New(Options{ConnString: s})
		if err == nil || !strings.Contains(err.Error(), "Options.ConnString cannot be read") {
			t.Errorf("%s: %v", s, err)
		}
		for _, part := range []string{"sec", "cret", "ret p", "u:se"} {
			if strings.Contains(fmt.Sprint(err), part) {
				t.Errorf("%s: %v", s, err)
			}
		}
	}
}
