package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// An Engine is a kind of server that speaks MySQL's protocol.
type Engine string

const (
	MariaDB Engine = "mariadb"
	MySQL   Engine = "mysql"
)

// SQLServer is a real mariadbd or mysqld. Its binary log has full row images and column names.
type SQLServer struct {
	Engine Engine
	Addr   string // host:port
	User   string // has all privileges and no password
	*server

	databases databases
}

// A dialect holds what differs between engines.
type dialect struct {
	daemon  string
	install func(ctx context.Context, data, temp string, args ...string) error // makes a data directory
	args    []string
	early   []string // names of arguments that must also be passed when the data directory is made
	kept    string   // a folder where later processes find an empty data directory; "": none
}

// EachEngine runs a test on each engine, as a subtest with the engine's name. If MySQL is not
// installed, its subtest is skipped before f is called; in continuous integration it fails.
func EachEngine(t *testing.T, f func(t *testing.T, e Engine)) {
	t.Helper()
	for _, e := range []Engine{MariaDB, MySQL} {
		t.Run(string(e), func(t *testing.T) {
			e.dialect(t)
			f(t, e)
		})
	}
}

// OneUnlessAccepting is EachEngine if CACHEASIDE_ACCEPT is set. Otherwise the test runs on MariaDB
// only. It is for long tests whose figures are reported.
func OneUnlessAccepting(t *testing.T, f func(t *testing.T, e Engine)) {
	t.Helper()
	if Accepting {
		EachEngine(t, f)
		return
	}
	t.Run(string(MariaDB), func(t *testing.T) { f(t, MariaDB) })
}

// perEngine holds what all tests of a process share.
type perEngine struct {
	server shared[SQLServer]

	mu    sync.Mutex
	empty string // a data directory that is copied for each new server
}

var engines = map[Engine]*perEngine{MariaDB: {}, MySQL: {}}

// Shared returns the server of the test process.
func (e Engine) Shared(t testing.TB) *SQLServer {
	t.Helper()
	m := engines[e].server.get(always, func() *SQLServer { return e.start(t) })
	m.revive(t)
	return m
}

// Start starts a server for this test. args override those arguments that every server gets.
func (e Engine) Start(t testing.TB, args ...string) *SQLServer {
	t.Helper()
	m := e.start(t, args...)
	m.claim(t)
	return m
}

// dialect returns the engine's dialect. If the engine is not installed, the test is skipped; in
// continuous integration it fails.
func (e Engine) dialect(t testing.TB) dialect {
	t.Helper()
	if e == MySQL {
		d, err := mySQL()
		if err != nil && os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		if err != nil {
			t.Skip(err)
		}
		return d
	}
	d, err := mariaDB()
	if err != nil {
		missing(t, "MariaDB", mariaDBPackage)
	}
	return d
}

func (e Engine) start(t testing.TB, args ...string) *SQLServer {
	t.Helper()
	d := e.dialect(t)
	early := slices.DeleteFunc(slices.Clone(args), func(a string) bool {
		return !slices.ContainsFunc(d.early, func(name string) bool { return strings.HasPrefix(a, name+"=") })
	})
	m, err := launchSQL(context.Background(), e, d, func(ctx context.Context, data, temp string) error {
		if len(early) > 0 {
			return d.install(ctx, data, temp, early...)
		}
		empty, err := e.emptyData(ctx, d)
		if err != nil {
			return err
		}
		return os.CopyFS(data, os.DirFS(empty))
	}, args...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// emptyData returns a data directory that is copied for each server of the test process. Making
// one takes ten times as long as copying it.
func (e Engine) emptyData(ctx context.Context, d dialect) (dir string, err error) {
	all := engines[e]
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.empty != "" {
		return all.empty, nil
	}
	if _, err := os.Stat(d.kept); err == nil {
		all.empty = d.kept
		return d.kept, nil
	}
	dir, err = tempDir(string(e) + "-empty")
	if err != nil {
		return "", err
	}
	data, temp := filepath.Join(dir, "data"), filepath.Join(dir, "tmp")
	if err := os.Mkdir(temp, 0o700); err != nil {
		return "", err
	}
	if err := d.install(ctx, data, temp); err != nil {
		return "", err
	}
	// This file holds the identity of a server. Each server creates its own.
	if err := os.Remove(filepath.Join(data, "auto.cnf")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	all.empty = data
	if d.kept != "" {
		keep(data, d.kept)
	}
	return data, nil
}

// keep copies a folder completely or not at all. It ignores errors, because the copy only saves
// time.
func keep(dir, name string) {
	part, err := os.MkdirTemp(filepath.Dir(name), "part-")
	if err == nil {
		err = os.CopyFS(filepath.Join(part, "data"), os.DirFS(dir))
	}
	if err == nil {
		_ = os.Rename(filepath.Join(part, "data"), name) // another process may have been faster
	}
	if part != "" {
		_ = os.RemoveAll(part)
	}
}

// launchSQL starts a server. fill makes its data directory.
func launchSQL(
	ctx context.Context, e Engine, d dialect, fill func(ctx context.Context, data, temp string) error, args ...string,
) (*SQLServer, error) {
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	m := &SQLServer{Engine: e, User: "root"}
	m.server, err = launch(ctx, string(e), func(s *server) error {
		data := filepath.Join(s.dir, "data")
		// not shared: a server removes the temporary tables of others when it starts
		temp := filepath.Join(s.dir, "tmp")
		if err := os.Mkdir(temp, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := fill(ctx, data, temp); err != nil {
			return err
		}
		s.argv = []string{d.daemon, "--no-defaults", "--user=" + me.Username,
			"--datadir=" + data,
			"--tmpdir=" + temp,
			"--socket=" + filepath.Join(s.dir, "m.sock"),
			"--pid-file=" + filepath.Join(s.dir, "m.pid"),
			"--port=" + strconv.Itoa(s.port),
			"--bind-address=127.0.0.1",
			"--skip-name-resolve",
			"--server-id=1",
			"--log-bin=binlog",
			"--binlog-format=ROW",
			"--binlog-row-image=FULL",
			"--binlog-row-metadata=FULL",
			"--sync-binlog=0",
			"--innodb-flush-log-at-trx-commit=0",
			"--performance-schema=OFF",
		}
		s.argv = append(append(s.argv, d.args...), args...)
		s.ready = func() error { return m.check(s, data) }
		return nil
	})
	if err != nil {
		return nil, err
	}
	m.Addr = m.addr()
	return m, nil
}

// check returns nil if the server on the port is the one with this data directory.
func (s *SQLServer) check(srv *server, data string) error {
	db, err := sql.Open("mysql", s.dsn(srv, ""))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), replyLimit)
	defer cancel()
	var dir string
	if err := db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&dir); err != nil {
		return err
	}
	if filepath.Clean(dir) != data {
		return fmt.Errorf("another server listens on port %d", srv.port)
	}
	return nil
}

func (s *SQLServer) dsn(srv *server, database string) string {
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "tcp", srv.addr(), s.User, database
	c.ParseTime = true
	return c.FormatDSN()
}

func init() {
	// Tests cut connections on purpose. The driver's log lines about that would only hide the
	// results.
	mysql.SetLogger(log.New(io.Discard, "", 0))
}

// Database returns the name of the test's own database. The first call of a test creates the
// database; it is dropped when the test ends.
func (s *SQLServer) Database(t testing.TB) string {
	t.Helper()
	return s.databases.forTest(t, s.server, s.exec)
}

// DSN returns the data source name of the test's database.
func (s *SQLServer) DSN(t testing.TB) string {
	t.Helper()
	return s.dsn(s.server, s.Database(t))
}

// DB returns connections to the test's database that are closed when the test ends.
func (s *SQLServer) DB(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, db)
}

// exec runs one statement with no database selected.
func (s *SQLServer) exec(statement string) error {
	db, err := sql.Open("mysql", s.dsn(s.server, ""))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Hang)
	defer cancel()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// Numbers returns a table for a FROM clause of MariaDB, MySQL or PostgreSQL. Its column seq has the
// numbers from to to, in any order.
func Numbers(from, to int) string {
	digits := "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL " +
		"SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	sum, tables := strconv.Itoa(from), ""
	for place := 1; place <= to-from; place *= 10 {
		sum += fmt.Sprintf(" + %d * d%d.n", place, place)
		if tables != "" {
			tables += ", "
		}
		tables += fmt.Sprintf("%s AS d%d", digits, place)
	}
	return fmt.Sprintf("(SELECT seq FROM (SELECT %s AS seq FROM %s) AS sums WHERE seq <= %d) AS numbers", sum,
		tables, to)
}
