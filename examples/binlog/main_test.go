package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func init() {
	testenv.RegisterChild("main", func() {
		os.Args = []string{"binlog"}
		main()
	})
}

// account is the expected output, with # for times and names of servers.
const account = `10000 products, in MariaDB #.
Three processes cache them, with #, and follow the binary log.
A fourth process has separate entries, a TTL of an hour, and no Consumer.
Times are measured from when another session can read the new row in the database.

1. # changes a price:
     UPDATE products SET price = 9.99 WHERE id = 1
   The caches had 11.00. They serve 9.99 after #; the fourth process still serves 11.00.

2. A SKU changes. It is the key of another loader, which has cached both the old and the new SKU:
     UPDATE products SET sku = 'LANTERN-1' WHERE id = 1
   LANTERN-1 is found, LAMP-1 is not, after #; in the fourth LAMP-1 is still product 1.

3. A product is inserted that was read before it existed:
     INSERT INTO products VALUES (10001, 'green', 'TENT-1', 'Tent', 89)
   The Bloom whitelist had refused its id (3 times), and the absence of its SKU was cached.
   Reads by both find it after #; in the fourth process it still does not exist.

4. One statement changes all prices. The caches have every 100th of these rows:
     UPDATE products SET price = price + 1 WHERE id <= 10000
   None of the 100 is old after #, loads included; in the fourth process 100 are.

5. A column is dropped between two changes of rows, so later columns move in the log:
     UPDATE products SET price = 5.55 WHERE id = 2
     ALTER TABLE products DROP COLUMN colour
     UPDATE products SET sku = 'LANTERN-2' WHERE id = 2
   The caches show all of it after #.

6. The Consumer is stopped, as in a deployment, while rows change:
     UPDATE products SET price = 3.33 WHERE id = 3
     UPDATE products SET sku = 'LANTERN-3' WHERE id = 3
   The caches still have 14.00. The Consumer continues from its checkpoint,
   #.
   The caches are up to date # after its start.

7. The Consumer's Stats: #
   positions lost: 0, failures: #
   position #.
   Health: no error.

`

var expected = regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(account), "#", ".+") + "$")

func checkAccount(t *testing.T, got string) {
	t.Helper()
	if !expected.MatchString(got) {
		t.Errorf("the output is:\n%s", got)
	}
	if !strings.Contains(got, "not understood: 0, parked: 0,\n") {
		t.Error("a change was not understood")
	}
	for line := range strings.Lines(got) {
		if utf8.RuneCountInString(line) > 120 {
			t.Errorf("a long line: %s", line)
		}
	}
}

// The lines have the same width on a machine that takes a minute.
func TestAfter(t *testing.T) {
	const ms = time.Millisecond
	if got := after([]time.Duration{2100 * time.Microsecond, 99 * ms, 100 * ms,
		59_999 * ms}); got != "2.1, 99.0, 100 and 59999 ms" {
		t.Error(got)
	}
}

// needs returns MariaDB, or skips the test without one.
func needs(t *testing.T) *testenv.SQLServer { t.Helper(); return testenv.SharedMariaDB(t) }

// The same on PostgreSQL, as a user who is not a superuser. The program leaves nothing there.
func TestAccountOnPostgres(t *testing.T) {
	p := testenv.StartPostgres(t)
	db := p.DB(t)
	if _, err := db.Exec("CREATE USER shop CREATEDB REPLICATION PASSWORD 'a secret'"); err != nil {
		t.Fatal(err)
	}
	url := strings.Replace(p.DSN(t), "//"+p.User+"@", "//shop:a%20secret@", 1)
	var out bytes.Buffer
	if err := run(t.Context(), config{postgres: url}, &out); err != nil {
		t.Fatalf("%v, after\n%s", err, out.String())
	}
	got := out.String()
	if strings.Contains(got, "secret") || !strings.HasPrefix(got, "10000 products, in PostgreSQL 1") {
		t.Error("it shows the password, or another server")
	}
	checkAccount(t, strings.NewReplacer("in PostgreSQL ", "in MariaDB ", "its logical replication",
		"the binary log").Replace(got))
	var left int
	if err := db.QueryRow("SELECT (SELECT COUNT(*) FROM pg_database WHERE datname = '" + database +
		"') + (SELECT COUNT(*) FROM pg_replication_slots)").Scan(&left); left != 0 || err != nil {
		t.Errorf("%d databases and slots are left, %v", left, err)
	}
	// An existing database with this name is not changed.
	if _, err := db.Exec("CREATE DATABASE " + database); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), config{postgres: url}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), database) {
		t.Error(err)
	}
	if _, err := db.Exec("DROP DATABASE " + database); err != nil {
		t.Error(err)
	}
}

func TestAccount(t *testing.T) {
	needs(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	var out bytes.Buffer
	if err := run(t.Context(), config{}, &out); err != nil {
		t.Fatal(err)
	}
	checkAccount(t, out.String())
}

// The program works on existing servers, with another user, and with -follow.
func TestFollow(t *testing.T) {
	m := needs(t)
	redis := testenv.SharedRedis(t)
	root := m.DB(t)
	exec := func(statements ...string) {
		t.Helper()
		for _, s := range statements {
			if _, err := root.Exec(s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	exec("CREATE USER shop IDENTIFIED BY 'a secret'", "GRANT REPLICATION SLAVE ON *.* TO shop",
		"GRANT ALL ON "+database+".* TO shop")
	defer exec("DROP USER shop")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	ended := make(chan error)
	go func() {
		err := run(ctx, config{addr: m.Addr, user: "shop", password: "a secret", redis: redis.Addr, follow: true}, w)
		w.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(r)
	var output strings.Builder
	until := func(what string) string {
		t.Helper()
		for lines.Scan() {
			fmt.Fprintln(&output, lines.Text())
			if strings.Contains(lines.Text(), what) {
				return lines.Text()
			}
		}
		stop()
		t.Fatalf("the program ends with %v, without the text %q:\n%s", <-ended, what, output.String())
		return ""
	}
	until("Now change")
	before, _, _ := strings.Cut(output.String(), "8. Now change")
	checkAccount(t, before)
	if command := until("mariadb "); !strings.Contains(command, "--user=shop "+database) {
		t.Error(command)
	}
	until("Ctrl-C")
	for _, x := range []struct{ do, want string }{
		{"UPDATE %s.products SET price = 7.77 WHERE id = 7", "update of product 7: price 18.00 -> 7.77. Prices served: 7.77, 7.77, 7.77; by the fourth process 18.00."},
		{"DELETE FROM %s.products WHERE id = 8", "delete of product 8: id 8, sku LAMP-8, name Lamp 8, price 19.00. Prices served: nothing, nothing, nothing; by the fourth process 19.00."},
		{"TRUNCATE TABLE %s.products", "truncate of " + database + ".products"},
	} {
		exec(fmt.Sprintf(x.do, database))
		if got := strings.TrimSpace(until(" of ")); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var n int
	if err := root.QueryRow("SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?",
		database).Scan(&n); n != 0 || err != nil {
		t.Errorf("%d databases are left, %v", n, err)
	}
	if left := redis.Client(t).Keys(t.Context(), "*").Val(); len(left) > 0 {
		t.Errorf("left in Redis: %q", left)
	}
}

// An existing database of a user is not changed.
func TestExistingDatabaseIsNotChanged(t *testing.T) {
	m := needs(t)
	db := m.DB(t)
	for _, s := range []string{"CREATE DATABASE " + database, "CREATE TABLE " + database + ".products (id INT)"} {
		if _, err := db.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	defer db.Exec("DROP DATABASE " + database)
	err := run(t.Context(), config{addr: m.Addr, user: m.User}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), database) {
		t.Error(err)
	}
	var n int
	if err := db.QueryRow("SELECT COUNT(*) FROM " + database + ".products").Scan(&n); err != nil {
		t.Error(err)
	}
}

func TestMissingServerSettings(t *testing.T) {
	m := needs(t)
	db := m.DB(t)
	if _, err := db.Exec("SET GLOBAL binlog_row_metadata = MINIMAL"); err != nil {
		t.Fatal(err)
	}
	defer db.Exec("SET GLOBAL binlog_row_metadata = FULL")
	err := run(t.Context(), config{addr: m.Addr, user: m.User}, io.Discard)
	if !errors.Is(err, canal.ErrSetup) || !strings.Contains(err.Error(), "binlog_row_metadata") {
		t.Error(err)
	}
}

// stopper is a standard output that cancels when the second change is printed.
type stopper struct {
	bytes.Buffer
	cancel context.CancelCauseFunc
}

var errStopped = errors.New("interrupted by the test")

func (s *stopper) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("2.")) {
		s.cancel(errStopped)
	}
	return s.Buffer.Write(p)
}

func TestInterrupted(t *testing.T) {
	m := needs(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	out := &stopper{cancel: cancel}
	if err := run(ctx, config{addr: m.Addr, user: m.User}, out); !errors.Is(err, errStopped) ||
		strings.Contains(out.String(), "\n3. ") {
		t.Errorf("%v, after\n%s", err, out)
	}
	err := m.DB(t).QueryRow("SELECT 1 FROM information_schema.schemata WHERE schema_name = ?", database).Scan(new(int))
	if !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("the database is left: %v", err)
	}
}

// The program works without the command-line client.
func TestOperatorWithoutAClient(t *testing.T) {
	m := needs(t)
	server, err := openMariaDB(t.Context(), config{addr: m.Addr, user: m.User})
	if err != nil {
		t.Fatal(err)
	}
	defer server.close(t.Context())
	if _, err := exec.LookPath("mariadb"); err != nil {
		t.Error(err)
	}
	t.Setenv("PATH", "")
	o := newOperator(server.server())
	if err := o.do(t.Context(), "UPDATE products SET price = 1 WHERE id = 1",
		"UPDATE products SET price = 2 WHERE id = 2"); err != nil || o.client != "" {
		t.Error(o.client, err)
	}
	if p, err := server.product(t.Context(), 2); p.Price != "2.00" || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
}

// Without MariaDB the program says what to install, and exits with status 1.
func TestNoMariaDB(t *testing.T) {
	c := testenv.SpawnChild(t, "main", "PATH=")
	if line, err := c.ReadLine(testenv.Hang); err != io.EOF {
		t.Errorf("it prints %q, %v", line, err)
	}
	if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "code 1") {
		t.Error(err)
	}
	t.Setenv("PATH", "")
	if err := run(t.Context(), config{}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "apt-get install mariadb-server") {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	t.Setenv("MYSQL_PASSWORD", "a secret")
	var help bytes.Buffer
	if _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{"-addr", "-user", "-redis", "-postgres", "-follow", "MYSQL_PASSWORD", database} {
		if !strings.Contains(help.String(), name) {
			t.Errorf("the help lacks %s", name)
		}
	}
	if strings.Contains(help.String(), "a secret") {
		t.Error("the help shows the password")
	}
	for _, bad := range [][]string{{"-addr", "localhost"}, {"-redis", "localhost"}, {"-user", ""},
		{"-addr", "db:3306", "-postgres", "postgres://db/shop"}, {"more"}, {"-unknown"}} {
		if _, err := parse(bad, io.Discard); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	c, err := parse([]string{"-addr", "db:3306", "-follow"}, io.Discard)
	if want := (config{addr: "db:3306", user: "root", password: "a secret", follow: true}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
}
