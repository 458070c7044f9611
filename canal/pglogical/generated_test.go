package pglogical

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
)

// The advice to set REPLICA IDENTITY FULL must not make the server refuse writes.
func TestAdviceOnIdentity(t *testing.T) {
	m := member{Name: "public.users", Leaf: true, Identity: "d", Key: []string{"id"}, Logged: []string{"id", "email"}}
	for _, c := range []struct {
		generated string
		stored    bool
		full      bool // as the error says
	}{{"", false, true}, {"s", false, false}, {"s", true, true}, {"v", true, false}, {"sv", true, false}} {
		m.Generated = c.generated
		why := m.check("cacheaside", []string{"email"}, publication{Generated: c.stored})
		if why == "" || strings.HasSuffix(why, "REPLICA IDENTITY FULL") != c.full {
			t.Errorf("%+v: %v", c, why)
		}
	}
}

// PostgreSQL 18 refuses UPDATE and DELETE of a published table with REPLICA IDENTITY FULL and
// generated columns that are not published. The Source publishes these columns, and leaves out
// tables where that is impossible.
func TestCreatePublicationOfGeneratedColumns(t *testing.T) {
	x := ownFrom(t, 18)
	create := func(o *Options) { o.CreatePublication = true }
	x.Do("DROP PUBLICATION cacheaside",
		"CREATE TABLE users (id INT PRIMARY KEY, n INT, twice INT GENERATED ALWAYS AS (n * 2) STORED)",
		"ALTER TABLE users REPLICA IDENTITY FULL",
		"CREATE TABLE orders (id INT PRIMARY KEY, n INT, twice INT GENERATED ALWAYS AS (n * 2))",
		"ALTER TABLE orders REPLICA IDENTITY FULL")
	l := x.Listen(x.source(create), x.Need([]string{"users", "id", "twice"}))
	x.Do("INSERT INTO users VALUES (1, 1)", "UPDATE users SET n = 2")
	l.Want("insert users: 1 1 2", "update users: 1 1 2 -> 1 2 4")
	l.Stop()
	x.IsSetup(x.Start(x.source(create), x.Need([]string{"users", "id"}, []string{"orders", "id"})).Ended(),
		"public.orders", "USING INDEX")
	x.Do("INSERT INTO orders VALUES (1, 1)", "UPDATE orders SET n = 2")
}

// A table is not added to a publication if the server would then refuse its writes.
func TestWritesOfGeneratedKeys(t *testing.T) {
	for _, c := range []struct {
		keyIs  string
		stored bool
		fails  bool
	}{{"", false, false}, {"s", false, true}, {"s", true, false}} {
		m := member{Name: "public.users", Identity: "d", Key: []string{"id"}, Generated: "s", KeyIs: c.keyIs}
		if err := m.checkWrites("cacheaside", c.stored); errors.Is(err, canal.ErrSetup) != c.fails {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// PostgreSQL 18 also refuses UPDATE and DELETE of a published table if a generated column of its
// primary key is not published. The Source adds no such table to a publication, and its advice
// works.
func TestCreatePublicationOfGeneratedKeys(t *testing.T) {
	x := ownFrom(t, 18)
	create := func(o *Options) { o.CreatePublication = true }
	advice := "ALTER PUBLICATION \"cacheaside\" SET (publish_generated_columns = stored)"
	for table, key := range map[string]string{"users": "id", "orders": "shop, id"} {
		x.Do("DROP PUBLICATION cacheaside", "CREATE PUBLICATION cacheaside",
			"CREATE TABLE "+table+" (n INT, shop INT, id INT GENERATED ALWAYS AS (n * 2) STORED, note INT, PRIMARY "+
				"KEY ("+key+"))", "INSERT INTO "+table+" VALUES (1, 1)")
		need := x.Need([]string{table, "id"})
		x.IsSetup(x.Start(x.source(create), need).Ended(), "public."+table, "("+key+")", advice)
		x.Do("UPDATE "+table+" SET note = 1", advice)
		l := x.Listen(x.source(create), need)
		x.Do("UPDATE " + table + " SET note = 2")
		l.Until("the update", func() bool {
			return slices.ContainsFunc(l.All(), func(c event.Change) bool { return c.Kind == event.Update })
		})
		l.Stop()
	}
}
