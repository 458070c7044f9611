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
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// MariaDB is a real mariadbd. It writes a binary log with full row images and
// column names, so that changes can be read from it.
type MariaDB struct {
	Addr string // host:port
	User string // may do everything, and has no password
	*server

	mu        sync.Mutex
	count     int
	databases map[testing.TB]string
}

var sharedMariaDB shared[MariaDB]

// SharedMariaDB returns the server of the test process.
func SharedMariaDB(t testing.TB) *MariaDB {
	t.Helper()
	m := sharedMariaDB.get(always, func() *MariaDB { return startMariaDB(t) })
	m.revive(t)
	return m
}

// StartMariaDB returns a server of the test's own, with arguments after those of
// all: of two with the same name the later one counts.
func StartMariaDB(t testing.TB, args ...string) *MariaDB {
	t.Helper()
	m := startMariaDB(t, args...)
	m.own(t)
	return m
}

func startMariaDB(t testing.TB, args ...string) *MariaDB {
	t.Helper()
	daemon := program(t, "mariadbd", mariaDBPackage)
	install := program(t, "mariadb-install-db", mariaDBPackage)
	m, err := launchMariaDB(context.Background(), daemon, func(ctx context.Context, data, temp string) error {
		empty, err := emptyMariaDB(ctx, install)
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

var emptyData struct {
	sync.Mutex
	dir string
}

// emptyMariaDB returns a data directory that all servers of the test process begin with.
// To make one takes ten times as long as to copy it.
func emptyMariaDB(ctx context.Context, install string) (dir string, err error) {
	emptyData.Lock()
	defer emptyData.Unlock()
	if emptyData.dir != "" {
		return emptyData.dir, nil
	}
	dir, err = tempDir("mariadb-empty")
	if err != nil {
		return "", err
	}
	data, temp := filepath.Join(dir, "data"), filepath.Join(dir, "tmp")
	if err := os.Mkdir(temp, 0o700); err != nil {
		return "", err
	}
	if err := installMariaDB(ctx, install, data, temp); err != nil {
		return "", err
	}
	emptyData.dir = data
	return data, nil
}

// installMariaDB makes a data directory.
func installMariaDB(ctx context.Context, install, data, temp string) error {
	me, err := user.Current()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, install, "--no-defaults", "--datadir="+data, "--tmpdir="+temp, "--user="+me.Username,
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
		"--innodb-log-file-size=4M")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it is a script, and what it runs has to end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", install, err, out)
	}
	return nil
}

// RunMariaDB starts a server for a program that is no test, such as an example,
// with the settings that it has for tests. Its user is root, without a password.
// stop kills it and removes its files; so does the end of the program, whatever
// ends it. ctx bounds the start only.
func RunMariaDB(ctx context.Context) (addr string, stop func(), err error) {
	daemon, err := lookup("mariadbd", mariaDBPackage)
	if err != nil {
		return "", nil, err
	}
	install, err := lookup("mariadb-install-db", mariaDBPackage)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			stopIdle()
		}
	}()
	m, err := launchMariaDB(ctx, daemon, func(ctx context.Context, data, temp string) error {
		return installMariaDB(ctx, install, data, temp)
	})
	if err != nil {
		return "", nil, err
	}
	return m.Addr, func() {
		m.Kill()
		os.RemoveAll(m.dir)
		stopIdle()
	}, nil
}

const mariaDBPackage = "mariadb-server"

// launchMariaDB starts a server. fill makes its data directory.
func launchMariaDB(ctx context.Context, daemon string, fill func(ctx context.Context, data, temp string) error, args ...string) (*MariaDB, error) {
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	m := &MariaDB{User: "root", databases: map[testing.TB]string{}}
	m.server, err = launch(ctx, "mariadb", func(s *server) error {
		data := filepath.Join(s.dir, "data")
		temp := filepath.Join(s.dir, "tmp") // of its own: a server that starts removes the temporary tables of others
		if err := os.Mkdir(temp, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := fill(ctx, data, temp); err != nil {
			return err
		}
		s.argv = []string{daemon, "--no-defaults", "--user=" + me.Username,
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
			"--innodb-buffer-pool-size=128M",
			"--innodb-log-file-size=4M",
			"--performance-schema=OFF",
		}
		s.argv = append(s.argv, args...)
		s.ready = func() error {
			db, err := sql.Open("mysql", m.dsn(s, ""))
			if err != nil {
				return err
			}
			defer db.Close()
			ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
			defer cancel()
			var dir string
			if err := db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&dir); err != nil {
				return err
			}
			if filepath.Clean(dir) != data {
				return fmt.Errorf("another server listens on port %d", s.port)
			}
			return nil
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	m.Addr = m.addr()
	return m, nil
}

func (m *MariaDB) dsn(s *server, database string) string {
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "tcp", s.addr(), m.User, database
	c.ParseTime = true
	return c.FormatDSN()
}

func init() {
	// Tests cut connections on purpose, and the driver would print it.
	mysql.SetLogger(log.New(io.Discard, "", 0))
}

// Database returns the name of the database that belongs to the test. It is
// created on the first call, and dropped when the test ends.
func (m *MariaDB) Database(t testing.TB) string {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if name := m.databases[t]; name != "" {
		return name
	}
	m.count++
	name := "test" + strconv.Itoa(m.count)
	if err := m.exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	m.databases[t] = name
	t.Cleanup(func() {
		m.mu.Lock()
		delete(m.databases, t)
		m.mu.Unlock()
		m.Resume()
		if !m.alive() {
			return // the test has killed the server
		}
		if err := m.exec("DROP DATABASE " + name); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return name
}

// DSN returns the data source name of the test's database.
func (m *MariaDB) DSN(t testing.TB) string {
	t.Helper()
	return m.dsn(m.server, m.Database(t))
}

// DB returns connections to the test's database, closed with the test.
func (m *MariaDB) DB(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", m.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, db)
}

// exec runs one statement outside of any database.
func (m *MariaDB) exec(statement string) error {
	db, err := sql.Open("mysql", m.dsn(m.server, ""))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Hang)
	defer cancel()
	_, err = db.ExecContext(ctx, statement)
	return err
}
