package mysqlbinlog

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// missing waits until a Source has reported n tables that are missing, and returns them.
func missing(l *sourcetest.Listener, n int) map[event.Table]string {
	l.Helper()
	all := map[event.Table]string{}
	l.Until("tables are missing", func() bool {
		for _, b := range l.Batches() {
			maps.Copy(all, b.Missing)
		}
		return len(all) >= n
	})
	return all
}

// A table that does not exist is reported at the start, with the tables that exist instead. A table
// that is created later is reported, too.
func TestMissingTables(t *testing.T) { each(t, missingTables) }

func missingTables(x *world) {
	t := x.T
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE VIEW people AS SELECT id FROM users")
	need := x.Need([]string{"users", "id"}, []string{"Users", "id"}, []string{"people", "id"}, []string{"later`", "id"})
	shop := event.Table{Schema: strings.ToUpper(x.Schema), Name: "users"}
	nowhere := event.Table{Schema: "nowhere", Name: "users"}
	need.Tables[shop], need.Tables[nowhere] = []string{"id"}, []string{"id"}
	l := x.Listen(x.source(), need)
	missing := missing(l, 5)
	of := func(name string) event.Table { return event.Table{Schema: x.Schema, Name: name} }
	for table, want := range map[event.Table]string{
		of("Users"):  "the server has " + x.Schema + ".users: table names are case-sensitive",
		shop:         "the server has " + x.Schema + ".users: table names are case-sensitive",
		of("people"): "it is a view: bind the tables that it reads, because the log only contains their changes",
		of("later`"): "the server has no such table",
		nowhere:      "the server has no such table",
	} {
		if missing[table] != want {
			t.Errorf("%v: %q, want %q", table, missing[table], want)
		}
	}
	if len(missing) != 5 {
		t.Errorf("%v", missing)
	}
	x.Do("CREATE TABLE `later``` (id INT PRIMARY KEY)", "INSERT INTO `later``` VALUES (1)")
	l.Want("alter later`", "insert later`: 1")
}

// For a user who may not see a table, its absence is not reported, unless the log has a table with
// nearly the same name.
func TestMissingTablesOfWhoMayNotSeeThem(t *testing.T) { each(t, missingTablesOfWhoMayNotSeeThem) }

func missingTablesOfWhoMayNotSeeThem(x *world) {
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE TABLE orders (id INT PRIMARY KEY)",
		"CREATE TABLE seen (id INT PRIMARY KEY)", "CREATE USER blindm", "GRANT REPLICATION SLAVE ON *.* TO blindm",
		"GRANT SELECT ON "+x.Schema+".seen TO blindm")
	x.Cleanup(func() { x.Do("DROP USER blindm") })
	l := x.Listen(x.source(func(o *Options) { o.User = "blindm" }),
		x.Need([]string{"Users", "id"}, []string{"orders", "id"}, []string{"seen", "id"}, []string{"none", "id"}))
	x.Do("INSERT INTO orders VALUES (1)", "INSERT INTO users VALUES (1)", "INSERT INTO users VALUES (2)",
		"INSERT INTO seen VALUES (1)")
	l.Want("insert orders: 1", "insert seen: 1")
	if missing := missing(l, 1); len(missing) != 1 ||
		!strings.HasPrefix(missing[event.Table{Schema: x.Schema, Name: "Users"}], "the server has "+x.Schema+".users") {
		x.Errorf("%v", missing)
	}
}

// A Consumer whose Binding is misspelt is not healthy, and says why.
func TestMisspeltBinding(t *testing.T) {
	x := onMariaDB(t) // TestMissingTables is of both
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	cache := x.cache(testenv.SharedRedis(x).Client(x))
	l, err := cacheaside.NewLoader(cache, "row",
		func(_ context.Context, _ int64) (string, error) { return "", errors.New("not asked") }, nil)
	x.Check(err)
	c, err := canal.NewConsumer(cache, x.source(), canal.NewFileCheckpoint(x.TempDir()+"/checkpoint"),
		[]canal.Binding{canal.Bind(l, x.Schema, "Users",
			canal.IntColumn[int64]("id"))}, &canal.Options{Logger: slog.New(slog.DiscardHandler)})
	x.Check(err)
	x.Consume(c)
	testenv.Eventually(x, "it is alerted", func() bool { return c.Stats().Alerts > 0 })
	if err := c.Health(testenv.Hang); err == nil ||
		!strings.Contains(err.Error(), "of "+x.Schema+".Users: the server has "+x.Schema+".users") {
		t.Error(err)
	}
}
