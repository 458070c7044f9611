package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// process is a process of the service, run by the test.
type process struct {
	url   string
	stop  context.CancelFunc
	ended chan error
}

// start runs the service until the test ends.
func start(t *testing.T, c config) *process {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &process{url: "http://" + listener.Addr().String(), stop: stop, ended: make(chan error, 1)}
	go func() { p.ended <- run(ctx, c, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

// request returns the body of a reply, or the text of an error while the service does not listen.
func (p *process) request(t *testing.T, method, path string) string {
	t.Helper()
	_, body := p.reply(t, method, path)
	return body
}

// status returns the text of the status of a reply.
func (p *process) status(t *testing.T, method, path string) string {
	t.Helper()
	code, _ := p.reply(t, method, path)
	return http.StatusText(code)
}

// reply returns the status and the body of a reply, or 0 and the text of an error.
func (p *process) reply(t *testing.T, method, path string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, strings.TrimSpace(string(body))
}

// gets waits until a GET of path returns a text that contains want.
func (p *process) gets(t *testing.T, path, want string) {
	t.Helper()
	testenv.Eventually(t, path+" has "+want, func() bool {
		select {
		case err := <-p.ended:
			p.ended <- err
			t.Fatalf("the service has ended: %v", err)
		default:
		}
		return strings.Contains(p.request(t, "GET", path), want)
	})
}

// consumes waits until the consumer reads changes.
func consumes(t *testing.T, db *sql.DB) {
	t.Helper()
	testenv.Eventually(t, "the consumer reads changes", func() bool {
		var n int
		err := db.QueryRow("SELECT COUNT(*) FROM pg_replication_slots WHERE active").Scan(&n)
		return err == nil && n > 0
	})
}

// changes updates a row past the service, and waits until the service serves the new row and the
// new lists.
func (p *process) changes(t *testing.T, db *sql.DB, name, city string) {
	t.Helper()
	do(t, db, fmt.Sprintf("UPDATE users SET name = '%s', city = '%s' WHERE id = 42", name, city))
	p.gets(t, "/users/42", name)
	p.gets(t, "/cities/"+city, name)
}

// The service sees its own writes immediately, and those of other programs soon. Its report is made
// once a day.
func TestService(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		server := testenv.StartPostgres(t)
		do(t, server.DB(t), "CREATE PUBLICATION cacheaside FOR ALL TABLES", tableOfUsers,
			"ALTER TABLE users REPLICA IDENTITY FULL")
		testService(t, server.DB(t), config{database: server.DSN(t)})
	})
	for _, e := range []testenv.Engine{testenv.MariaDB, testenv.MySQL} {
		t.Run(string(e), func(t *testing.T) {
			server := e.Start(t)
			do(t, server.DB(t), tableOfUsers+oneSpelling)
			testService(t, server.DB(t), config{database: server.DSN(t)})
		})
	}
}

const tableOfUsers = `CREATE TABLE users (id BIGINT PRIMARY KEY, city VARCHAR(100) NOT NULL,
	email VARCHAR(200) NOT NULL UNIQUE, name VARCHAR(200) NOT NULL)`

func testService(t *testing.T, db *sql.DB, c config) {
	do(t, db, "INSERT INTO users VALUES (42, 'London', 'ada@x.org', 'Ada')")
	c.redis = testenv.SharedRedis(t).Addr
	p := start(t, c)
	p.gets(t, "/users/42", "Ada")
	p.gets(t, "/readyz", "ready")
	p.gets(t, "/log", "followed")
	testenv.Eventually(t, "the report of today has one user", func() bool {
		return p.request(t, "POST", "/report") == "1"
	})
	for _, step := range []struct{ method, path, read, want string }{
		{"POST", "/users/42?name=Grace", "/users/42", "Grace"},
		{"PUT", "/users/8?city=Paris&email=joan@x.org&name=Joan", "/cities/Paris", "Joan"},
		{"GET", "/users/8", "/emails/joan@x.org", "Joan"},
		{"POST", "/users/8?city=Oslo", "/cities/Oslo", "Joan"},
		{"GET", "/users/8", "/cities/Paris", "null"},
		{"GET", "/users/8", "/users/7", "not found"},
	} {
		p.request(t, step.method, step.path)
		if got := p.request(t, "GET", step.read); !strings.Contains(got, step.want) {
			t.Errorf("after %s %s: %s is %q, want %q", step.method, step.path, step.read, got, step.want)
		}
	}
	for _, step := range []struct{ method, path, want string }{
		{"PUT", "/users/8?city=Paris&email=new@x.org&name=Joan", "Conflict"},
		{"PUT", "/users/9?city=Paris&email=joan@x.org&name=Joan", "Conflict"},
		{"POST", "/users/8?name=Joan", "OK"},
		{"POST", "/users/9?name=Joan", "Not Found"},
		{"POST", "/users/9?city=Oslo", "Not Found"},
	} {
		if got := p.status(t, step.method, step.path); got != step.want {
			t.Errorf("%s %s: %s, want %s", step.method, step.path, got, step.want)
		}
	}
	do(t, db, "UPDATE users SET name = 'Hedy', email = 'hedy@x.org' WHERE id = 42",
		"INSERT INTO users VALUES (7, 'Paris', 'ida@x.org', 'Ida')")
	p.gets(t, "/users/42", "Hedy")
	p.gets(t, "/emails/hedy@x.org", "Hedy")
	p.gets(t, "/emails/ada@x.org", "not found")
	p.gets(t, "/emails/HEDY@x.org", "not found")
	p.gets(t, "/users/7", "Ida")
	p.gets(t, "/cities/Paris", "Ida")
	do(t, db, "UPDATE users SET city = 'London' WHERE id = 7")
	p.gets(t, "/cities/London", "Ida")
	p.gets(t, "/cities/Paris", "null")
	p.gets(t, "/metrics", "cacheaside_")
	if got := p.request(t, "POST", "/report"); got != "1" {
		t.Errorf("the report of today was made again: %q", got)
	}
}

// Actions of operators and neighbours neither end the service nor leave its caches stale.
func TestServiceStaysUp(t *testing.T) {
	server, redis := testenv.StartPostgres(t), testenv.StartRedis(t)
	db := server.DB(t)
	do(t, db,
		"CREATE ROLE shop LOGIN REPLICATION PASSWORD 'first'",
		"GRANT CREATE ON SCHEMA public TO shop",
		`CREATE TABLE users (id BIGINT PRIMARY KEY, city TEXT NOT NULL, email TEXT NOT NULL, name TEXT NOT NULL)
			PARTITION BY RANGE (id)`,
		"CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (0) TO (1000)",
		"ALTER TABLE users REPLICA IDENTITY FULL",
		"ALTER TABLE users_1 REPLICA IDENTITY FULL",
		"GRANT SELECT, INSERT, UPDATE ON users TO shop",
		"INSERT INTO users VALUES (42, 'London', 'ada@x.org', 'Ada')",
		"CREATE PUBLICATION cacheaside FOR TABLE users",
		// From now on, the role shop needs its password.
		`DO $$ BEGIN EXECUTE format('COPY (VALUES (''host all,replication shop 127.0.0.1/32 scram-sha-256''),
			(''host all,replication all 127.0.0.1/32 trust'')) TO %L', current_setting('hba_file')); END $$`,
		"SELECT pg_reload_conf()")
	password := filepath.Join(t.TempDir(), "password")
	write(t, password, "first")
	c := config{
		database:     strings.Replace(server.DSN(t), server.User+"@", "shop@", 1),
		redis:        redis.Addr,
		passwordFile: password,
	}
	p := start(t, c)
	p.gets(t, "/users/42", "Ada")
	consumes(t, db)
	p.changes(t, db, "Grace", "Paris")

	t.Log("the publication is dropped and created again")
	do(t, db, "DROP PUBLICATION cacheaside")
	do(t, db, "UPDATE users SET name = 'Hedy' WHERE id = 42", "CREATE PUBLICATION cacheaside FOR TABLE users")
	p.gets(t, "/users/42", "Hedy")
	p.changes(t, db, "Ida", "Berlin")

	t.Log("a new partition, without REPLICA IDENTITY FULL")
	do(t, db, "CREATE TABLE users_2 PARTITION OF users FOR VALUES FROM (1000) TO (2000)",
		"INSERT INTO users VALUES (1042, 'Berlin', 'joan@x.org', 'Joan')")
	p.gets(t, "/users/1042", "Joan")
	p.gets(t, "/cities/Berlin", "Joan")
	p.changes(t, db, "Ann", "Rome")

	t.Log("another application with all defaults on the same Redis, and a temporary child")
	n := startNeighbour(t, redis.Addr)
	for id := range int64(neighbourRows) {
		if _, err := n.notes.Get(t.Context(), id+1); err != nil {
			t.Fatalf("the neighbour's row %d: %v", id+1, err)
		}
	}
	n.works()
	p.changes(t, db, "Eve", "Oslo")

	t.Log("Redis is killed")
	redis.Kill()
	p.gets(t, "/users/42", "Eve")
	p.gets(t, "/readyz", "ready")
	do(t, db, "UPDATE users SET name = 'Mary' WHERE id = 42")
	if testenv.Accepting {
		time.Sleep(20 * time.Second)
	}
	redis.Restart(t)
	p.gets(t, "/users/42", "Mary")
	p.changes(t, db, "Jean", "Bern")

	t.Log("PostgreSQL is restarted")
	server.Kill()
	server.Restart(t)
	p.gets(t, "/users/42", "Jean")
	testenv.Eventually(t, "the database", func() bool { return db.Ping() == nil })
	p.changes(t, db, "Rose", "Kyiv")

	t.Log("the password changes, and all connections are cut")
	do(t, db, "ALTER ROLE shop PASSWORD 'second'")
	write(t, password, "second")
	do(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'")
	p.changes(t, db, "Vera", "Riga")
	p.request(t, "POST", "/users/42?name=Emmy")
	p.gets(t, "/users/42", "Emmy")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func do(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}
