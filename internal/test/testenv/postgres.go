package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const postgresPackage = "postgresql"

// Postgres is a real PostgreSQL server. Its WAL level is logical, so that changes can be
// read from it. A test imports the driver: this package opens connections by the name
// "pgx", which github.com/jackc/pgx/v5/stdlib registers.
type Postgres struct {
	Addr string // host:port
	User string // a superuser without a password
	*server

	programs  string // the folder of initdb and postgres
	databases databases
}

var sharedPostgres shared[Postgres]

// SharedPostgres returns the PostgreSQL of the test process.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	p := sharedPostgres.get(always, func() *Postgres { return startPostgres(t) })
	p.revive(t)
	return p
}

// StartPostgres starts a PostgreSQL for this test only. Settings such as
// "max_prepared_transactions=10" override those of all servers.
func StartPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	p := startPostgres(t, settings...)
	p.claim(t)
	return p
}

// StartPostgresFrom is StartPostgres for a test of what the server has since a major version. If
// the usual server is older, it starts the one that scripts/fetch.sh postgresql-18 has downloaded.
func StartPostgresFrom(t testing.TB, major int, settings ...string) *Postgres {
	t.Helper()
	folder := postgresPrograms(t)
	if postgresMajor(t, folder) < major {
		folder = filepath.Join(fetched(newestPostgres), "bin")
		if _, err := exec.LookPath(filepath.Join(folder, "postgres")); err != nil {
			skip(t, "PostgreSQL "+strconv.Itoa(major)+" is not installed: `scripts/fetch.sh "+newestPostgres+
				"` downloads a later one, and installs nothing")
		}
	}
	p := startPostgresIn(t, folder, settings...)
	p.claim(t)
	return p
}

const newestPostgres = "postgresql-18"

func startPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	return startPostgresIn(t, postgresPrograms(t), settings...)
}

func startPostgresIn(t testing.TB, folder string, settings ...string) *Postgres {
	t.Helper()
	return launchPostgres(t, folder, func(s *server, data string) error {
		return fillPostgres(context.Background(), folder, s.dir, data, s.user)
	}, settings...)
}

// launchPostgres starts a server on the data directory that fill makes.
func launchPostgres(
	t testing.TB, folder string, fill func(s *server, data string) error, settings ...string,
) *Postgres {
	t.Helper()
	p := &Postgres{User: "postgres", programs: folder}
	var err error
	p.server, err = launch(context.Background(), "postgres", func(s *server) error {
		if s.user, err = postgresUser(); err != nil {
			return err
		}
		data := filepath.Join(s.dir, "data")
		if err := openTo(s.dir, s.user); err != nil {
			return err
		}
		if err := fill(s, data); err != nil {
			return err
		}
		s.forks = true
		s.argv = []string{filepath.Join(folder, "postgres"), "-D", data}
		for _, setting := range append([]string{
			"listen_addresses=127.0.0.1",
			"port=" + strconv.Itoa(s.port),
			"unix_socket_directories=",
			// Without fsync a killed server loses nothing, because the kernel keeps what it has
			// written. full_page_writes and synchronous_commit stay on, because a kill can
			// interrupt a write.
			"fsync=off",
			"wal_level=logical",
			"shared_buffers=32MB",
			"max_connections=200",
			"max_wal_senders=20",
			"max_replication_slots=20",
			"dynamic_shared_memory_type=mmap", // files in data, which are removed with it
		}, settings...) {
			s.argv = append(s.argv, "-c", setting)
		}
		s.ready = func() error { return postgresReady(s, data) }
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Addr = p.addr()
	return p
}

// postgresPrograms returns the folder of initdb and postgres. Those on PATH take precedence
// over the newest version that Debian's packages have installed. Without any the test is
// skipped; in continuous integration it fails.
func postgresPrograms(t testing.TB) string {
	t.Helper()
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(folders, func(a, b string) int { return postgresVersion(b) - postgresVersion(a) })
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil { // its folder has all programs
			folders = append([]string{filepath.Dir(path)}, folders...)
		}
	}
	for _, folder := range folders {
		_, err := exec.LookPath(filepath.Join(folder, "initdb"))
		if err == nil {
			_, err = exec.LookPath(filepath.Join(folder, "postgres"))
		}
		if err == nil {
			return folder
		}
	}
	missing(t, "PostgreSQL", postgresPackage)
	return ""
}

// postgresVersion returns 15 for /usr/lib/postgresql/15/bin.
func postgresVersion(folder string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
	return n
}

// postgresMajor returns the major version of the postgres in a folder.
func postgresMajor(t testing.TB, folder string) int {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), filepath.Join(folder, "postgres"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	var major int
	if _, err := fmt.Sscanf(string(text), "postgres (PostgreSQL) %d", &major); err != nil {
		t.Fatalf("the version of postgres is %q", text)
	}
	return major
}

// postgresUser returns the user that the server runs as, or nil for the user of the test process.
// The server refuses to run as root.
func postgresUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and the machine has none of the users that could run it")
}

// emptyPostgres has a data directory for each folder of programs. All servers of the test process
// begin with a copy.
var emptyPostgres struct {
	sync.Mutex
	data map[string]string
}

// fillPostgres creates the data directory of a server in the folder dir. It runs initdb only once,
// and copies the result for each server.
func fillPostgres(ctx context.Context, programs, dir, data string, user *syscall.Credential) error {
	empty := &emptyPostgres
	empty.Lock()
	defer empty.Unlock()
	if empty.data[programs] == "" {
		dir, err := tempDir("postgres-empty")
		if err != nil {
			return err
		}
		if err := openTo(dir, user); err != nil {
			return err
		}
		made := filepath.Join(dir, "data")
		if err := prepareAs(ctx, user, dir, filepath.Join(programs, "initdb"), "--pgdata="+made, "--username=postgres",
			"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--wal-segsize=1"); err != nil {
			return err
		}
		if empty.data == nil {
			empty.data = map[string]string{}
		}
		empty.data[programs] = made
	}
	return prepareAs(ctx, user, dir, "cp", "-Rp", empty.data[programs], data)
}

// openTo gives a folder of tempDir to a user, who may then pass the folder above it.
func openTo(dir string, user *syscall.Credential) error {
	if user == nil {
		return nil
	}
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	return os.Chown(dir, int(user.Uid), int(user.Gid))
}

// postgresReady returns nil when the server has written to its data directory that it
// accepts connections. An earlier process may have left such a file.
func postgresReady(s *server, data string) error {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 8 || lines[0] != strconv.Itoa(s.Pid()) || strings.TrimSpace(lines[7]) != "ready" {
		return fmt.Errorf("postmaster.pid is %q", lines)
	}
	// A killed server leaves its System V segment. One that is marked as removed ends with
	// the last process that uses it.
	if segment := strings.Fields(lines[6]); len(segment) == 2 {
		_ = exec.Command("ipcrm", "-m", segment[1]).Run()
	}
	return nil
}

// Database returns the name of the database that belongs to the test. It is created on the
// first call, and dropped when the test ends, even if a connection still uses it.
func (p *Postgres) Database(t testing.TB) string {
	t.Helper()
	if !slices.Contains(sql.Drivers(), "pgx") {
		t.Fatal(`the test does not import _ "github.com/jackc/pgx/v5/stdlib"`)
	}
	return p.databases.forTest(t, p.server, func(statement string) error {
		if strings.HasPrefix(statement, "DROP") {
			statement += " WITH (FORCE)"
		}
		// A replication slot may be in use for a moment after its connection was closed.
		return eventually(func() error { return p.exec(statement) }, Hang)
	})
}

// DSN returns the URL of the test's database.
func (p *Postgres) DSN(t testing.TB) string {
	t.Helper()
	return p.dsn(p.Database(t))
}

func (p *Postgres) dsn(database string) string {
	return "postgres://" + p.User + "@" + p.addr() + "/" + database + "?sslmode=disable"
}

// DB returns connections to the test's database, closed with the test.
func (p *Postgres) DB(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", p.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, db)
}

// exec runs one statement outside of the tests' databases.
func (p *Postgres) exec(statement string) error {
	db, err := sql.Open("pgx", p.dsn("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Hang)
	defer cancel()
	_, err = db.ExecContext(ctx, statement)
	return err
}
