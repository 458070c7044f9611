package main

import (
	"bytes"
	"database/sql"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/alicebob/miniredis/v2"

	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	patience = time.Minute
	testenv.Main(m)
}

const account = `1. The process builds the whitelist and loads the 100 most popular products.
   => SQL queries: 2, rows requested: 100, hits in memory or Redis: 0, refused by the filter: 0

2. It reads five products, twice: two are cached, and the whitelist refuses one that does not exist.
   found [99 100 101 102]
   => SQL queries: 1, rows requested: 2, hits in memory or Redis: 2, refused by the filter: 1

   found [99 100 101 102]
   => SQL queries: 0, rows requested: 0, hits in memory or Redis: 4, refused by the filter: 1

3. That product is created, and the next read finds it.
   no such product; then "Lantern"
   => SQL queries: 3, rows requested: 3, hits in memory or Redis: 0, refused by the filter: 0

4. It gets another SKU. Reads by the new SKU find it, reads by the old one do not.
   no such product; but "Lantern"
   => SQL queries: 3, rows requested: 3, hits in memory or Redis: 0, refused by the filter: 0

5. Two callers read a page. The first one changes its copy.
   Lamp 1: map[colour:copper seen:yes] and map[colour:copper]
   => SQL queries: 1, rows requested: 1, hits in memory or Redis: 1, refused by the filter: 0

6. The product is renamed. Product and page are loaded again.
   Night light, and on the page Night light
   => SQL queries: 2, rows requested: 2, hits in memory or Redis: 0, refused by the filter: 0

7. The desk lamps are listed. A product moves to them, and the list is loaded again.
   [40 80 120 160 200]; then [7 40 80 120 160 200]
   => SQL queries: 4, rows requested: 6, hits in memory or Redis: 7, refused by the filter: 0

8. The database fails. Cached rows are found. A row that is not cached fails, and is not loaded again within ErrorTTL.
   found [1 2]
   150: SQL logic error: no such table: products (1)
   => SQL queries: 1, rows requested: 1, hits in memory or Redis: 2, refused by the filter: 0

   found [1 2]
   150: cacheaside: a load of this key failed a moment ago: SQL logic error: no such table: products (1)
   => SQL queries: 0, rows requested: 0, hits in memory or Redis: 2, refused by the filter: 0

9. Another process warms its cache. Rows that are in Redis are not loaded again.
   => SQL queries: 0, rows requested: 0, hits in memory or Redis: 0, refused by the filter: 0

`

// output returns the output of a run.
func output(t *testing.T, redis string, d dsns) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), redis, d, &out); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 120 {
			t.Errorf("a long line: %s", line)
		}
	}
	return out.String()
}

func TestAccount(t *testing.T) {
	server := miniredis.RunT(t)
	if got := output(t, server.Addr(), dsns{}); got != account {
		t.Errorf("the output is:\n%s", got)
	}
	if left := server.Keys(); len(left) > 0 {
		t.Errorf("left in Redis: %q", left)
	}
}

// The same on real servers. Only the messages of the databases differ.
func TestAccountOnServers(t *testing.T) {
	t.Run("MariaDB", func(t *testing.T) {
		m := testenv.SharedMariaDB(t)
		sameAccount(t, dsns{mysql: m.DSN(t)}, m.DB(t), "DATABASE()")
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		p := testenv.SharedPostgres(t)
		sameAccount(t, dsns{postgres: p.DSN(t)}, p.DB(t), "current_schema()")
	})
	t.Run("PostgreSQL, another schema", func(t *testing.T) {
		p := testenv.SharedPostgres(t)
		db := p.DB(t)
		if _, err := db.Exec("CREATE SCHEMA shop"); err != nil {
			t.Fatal(err)
		}
		sameAccount(t, dsns{postgres: p.DSN(t) + "&search_path=shop"}, db, "ANY (ARRAY['public', 'shop'])")
	})
}

func sameAccount(t *testing.T, d dsns, db *sql.DB, schema string) {
	t.Helper()
	got := output(t, testenv.SharedRedis(t).Addr, d)
	message := regexp.MustCompile(
		`(150: (?:cacheaside: a load of this key failed a moment ago: )?)(?:SQL logic error|Error|ERROR).*`)
	if message.ReplaceAllString(got, "$1") != message.ReplaceAllString(account, "$1") {
		t.Errorf("the output is:\n%s", got)
	}
	var tables int
	if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = " +
		schema).Scan(&tables); tables != 0 || err != nil {
		t.Errorf("%d tables are left, %v", tables, err)
	}
}

// embedded returns a process with an embedded Redis and an embedded database.
func embedded(t *testing.T) (*miniredis.Miniredis, *process) {
	t.Helper()
	server := miniredis.RunT(t)
	rdb := openRedis(server.Addr())
	db, dialect, err := openDatabase(dsns{})
	if err != nil {
		t.Fatal(err)
	}
	if err := fill(t.Context(), db, dialect); err != nil {
		t.Fatal(err)
	}
	p, err := start(rdb, db, dialect, "cacheaside")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), db.Close(), rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := p.listed(t.Context()); err != nil {
		t.Fatal(err)
	}
	return server, p
}

// A rename succeeds while Redis is down. The old name disappears from the cache when Redis is back.
func TestRenameWhileRedisFails(t *testing.T) {
	server, p := embedded(t)
	name := func() string {
		product, err := p.ByID(t.Context(), 7)
		if err != nil {
			t.Error(err)
		}
		return product.Name
	}
	if got := name(); got != "Lamp 7" {
		t.Fatalf("%q", got)
	}
	server.SetError("ERR out of order")
	if err := p.Rename(t.Context(), 7, "Torch"); err != nil {
		t.Fatal(err)
	}
	// Because the filter would hide it.
	if err := p.Create(t.Context(), Product{ID: 998, SKU: "x"}); err == nil {
		t.Error("Create succeeds, although other processes would not see the product")
	}
	server.SetError("")
	testenv.Eventually(t, "the cache follows", func() bool { return name() == "Torch" })
}

// Each write reaches exactly the lists that it changes, in another process too.
func TestLists(t *testing.T) {
	server, p := embedded(t)
	rdb := openRedis(server.Addr())
	other, err := start(rdb, p.db, sqloutbox.SQLite, "cacheaside")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(other.Close(), rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	check := func(after string, desk, garden []int64) {
		t.Helper()
		for category, want := range map[string][]int64{"desk": desk, "garden": garden} {
			found, err := p.ByCategory(t.Context(), category, 0)
			if got := ids(found); !slices.Equal(got, want) || err != nil {
				t.Errorf("after %s, %s is %v, want %v: %v", after, category, got, want, err)
			}
			testenv.Eventually(t, "the other process follows", func() bool {
				found, err := other.ByCategory(t.Context(), category, 0)
				return slices.Equal(ids(found), want) && err == nil
			})
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check("the start", []int64{40, 80, 120, 160, 200}, nil)
	do(p.Create(t.Context(), Product{ID: 300, SKU: "torch", Category: "garden"}))
	check("an insert", []int64{40, 80, 120, 160, 200}, []int64{300})
	do(p.Move(t.Context(), 80, "garden"))
	check("a move", []int64{40, 120, 160, 200}, []int64{80, 300})

	loads := p.lists.Stats().Loads
	do(p.Rename(t.Context(), 40, "Night light"))
	check("a rename", []int64{40, 120, 160, 200}, []int64{80, 300})
	if n := p.lists.Stats().Loads - loads; n != 0 {
		t.Errorf("a rename invalidates %d lists, want 0", n)
	}
	if err := p.Move(t.Context(), 999, "desk"); !errors.Is(err, ErrNoProduct) {
		t.Error(err)
	}
	check("a move of no product", []int64{40, 120, 160, 200}, []int64{80, 300})
}

func TestErrors(t *testing.T) {
	_, p := embedded(t)
	if err := p.Create(t.Context(), Product{ID: 7, SKU: "lamp-0"}); err == nil {
		t.Error("Create accepts a product twice")
	}
	if err := p.Create(t.Context(), Product{ID: 300, SKU: "lamp-7"}); err == nil {
		t.Error("Create accepts a SKU of another product")
	}
	if _, err := p.ByID(t.Context(), 300); !errors.Is(err, ErrNoProduct) {
		t.Errorf("after the rollback: %v", err)
	}
	for _, err := range []error{p.Rename(t.Context(), 999, "x"), p.Relabel(t.Context(), 999, "x")} {
		if !errors.Is(err, ErrNoProduct) {
			t.Error(err)
		}
	}
	if err := run(t.Context(), "127.0.0.1:1", dsns{}, &bytes.Buffer{}); err == nil {
		t.Error("run succeeds without Redis")
	}
}
