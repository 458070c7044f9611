package testenv

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
)

// PostgreSQL takes the place of an Engine where a test also runs on PostgreSQL. It has no methods
// of its own: use DatabaseOf.
const PostgreSQL Engine = "postgres"

// A Database is a server of the test process of any kind, with what the kinds have in common.
type Database struct {
	anyServer
	Addr   string // host:port
	Driver string // for sqlx.Open
}

type anyServer interface {
	DSN(t testing.TB) string
	DB(t testing.TB) *sql.DB
	Pause()
	Resume()
	Restart(t testing.TB)
}

// DatabaseOf returns the shared server of an engine, or of PostgreSQL.
func DatabaseOf(t testing.TB, e Engine) *Database {
	t.Helper()
	if e == PostgreSQL {
		return databaseOn(SharedPostgres(t))
	}
	m := e.Shared(t)
	return &Database{m, m.Addr, "mysql"}
}

func databaseOn(p *Postgres) *Database { return &Database{p, p.Addr, "pgx"} }

// DurableWith returns a server that writes to the disk, with a setting of its durability. A
// PostgreSQL is the test's own. The shared server of another engine gets its old settings back when
// the test ends.
func DurableWith(t testing.TB, e Engine, setting string) *Database {
	t.Helper()
	if e == PostgreSQL {
		return databaseOn(StartPostgres(t, "fsync=on", setting))
	}
	d := DatabaseOf(t, e)
	db := d.DB(t)
	set := func(flush, setting string) {
		if _, err := db.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = " + flush + ", GLOBAL " +
			setting); err != nil {
			t.Error(err)
		}
	}
	set("1", setting)
	t.Cleanup(func() { set("0", "sync_binlog=0") })
	return d
}

// Durable returns a server that loses no committed transaction if its process is killed.
func Durable(t testing.TB, e Engine) *Database {
	t.Helper()
	if e == PostgreSQL {
		return DurableWith(t, e, "synchronous_commit=on")
	}
	return DurableWith(t, e, "sync_binlog=0")
}

// Open returns connections to the database of the test.
func (d *Database) Open(t testing.TB) *sqlx.DB {
	t.Helper()
	return sqlx.NewDb(d.DB(t), d.Driver)
}

// OpenDSN opens the DSN of a Database.
func OpenDSN(dsn string) (*sqlx.DB, error) {
	if strings.HasPrefix(dsn, "postgres://") {
		return sqlx.Open("pgx", dsn)
	}
	return sqlx.Open("mysql", dsn)
}

// EachServer runs a test on each engine and on PostgreSQL, as EachEngine does.
func EachServer(t *testing.T, f func(t *testing.T, e Engine)) {
	t.Helper()
	EachEngine(t, f)
	t.Run(string(PostgreSQL), func(t *testing.T) { f(t, PostgreSQL) })
}

// TwoServersUnlessAccepting is EachServer if CACHEASIDE_ACCEPT is set. Otherwise the test runs on
// MariaDB and PostgreSQL only.
func TwoServersUnlessAccepting(t *testing.T, f func(t *testing.T, e Engine)) {
	t.Helper()
	OneUnlessAccepting(t, f)
	t.Run(string(PostgreSQL), func(t *testing.T) { f(t, PostgreSQL) })
}

// OneServerUnlessAccepting is EachServer if CACHEASIDE_ACCEPT is set. Otherwise the test runs on
// MariaDB only.
func OneServerUnlessAccepting(t *testing.T, f func(t *testing.T, e Engine)) {
	t.Helper()
	OneUnlessAccepting(t, f)
	if Accepting {
		t.Run(string(PostgreSQL), func(t *testing.T) { f(t, PostgreSQL) })
	}
}
