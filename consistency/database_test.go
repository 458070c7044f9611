package consistency

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// postgres takes the place of an engine where a test runs on PostgreSQL, too.
const postgres testenv.Engine = "postgres"

// database is a server of the test process, as far as tests use those of all kinds alike.
type database struct {
	sqlServer
	addr    string
	driver  string
	dialect Dialect
}

type sqlServer interface {
	DSN(t testing.TB) string
	DB(t testing.TB) *sql.DB
	Pause()
	Resume()
	Restart(t testing.TB)
}

func databaseOf(t testing.TB, e testenv.Engine) *database {
	t.Helper()
	if e == postgres {
		return databaseOn(testenv.SharedPostgres(t))
	}
	m := e.Shared(t)
	return &database{m, m.Addr, "mysql", MySQL}
}

func databaseOn(p *testenv.Postgres) *database { return &database{p, p.Addr, "pgx", Postgres} }

// durableWith returns a server that writes to the disk, with one of durabilities. A PostgreSQL is
// the test's own. The shared server of another engine has its old settings back when the test ends.
func durableWith(t testing.TB, e testenv.Engine, setting string) *database {
	t.Helper()
	if e == postgres {
		return databaseOn(testenv.StartPostgres(t, "fsync=on", setting))
	}
	d := databaseOf(t, e)
	db := d.DB(t)
	set := func(flush, setting string) {
		if _, err := db.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = " + flush + ", GLOBAL " + setting); err != nil {
			t.Error(err)
		}
	}
	set("1", setting)
	t.Cleanup(func() { set("0", "sync_binlog=0") })
	return d
}

// durable returns a server that loses nothing that is committed if its process is killed.
func durable(t testing.TB, e testenv.Engine) *database {
	t.Helper()
	return durableWith(t, e, map[bool]string{false: "sync_binlog=0", true: "synchronous_commit=on"}[e == postgres])
}

func (d *database) open(t testing.TB) *sqlx.DB {
	t.Helper()
	return sqlx.NewDb(d.DB(t), d.driver)
}

// openDSN is sqlx.Open for the DSN of a server.
func openDSN(dsn string) (*sqlx.DB, error) {
	if strings.HasPrefix(dsn, "postgres://") {
		return sqlx.Open("pgx", dsn)
	}
	return sqlx.Open("mysql", dsn)
}

// dialectOf is the dialect of a driver.
func dialectOf(driver string) Dialect {
	return map[string]Dialect{"mysql": MySQL, "sqlite": SQLite, "pgx": Postgres}[driver]
}

// eachServer runs f on each engine and on PostgreSQL.
func eachServer(t *testing.T, f func(t *testing.T, e testenv.Engine)) {
	t.Helper()
	testenv.EachEngine(t, f)
	t.Run(string(postgres), func(t *testing.T) { f(t, postgres) })
}

// serversIfAccepting is eachServer where CACHEASIDE_ACCEPT is set, and only MariaDB and PostgreSQL
// otherwise.
func serversIfAccepting(t *testing.T, f func(t *testing.T, e testenv.Engine)) {
	t.Helper()
	testenv.OneUnlessAccepting(t, f)
	t.Run(string(postgres), func(t *testing.T) { f(t, postgres) })
}

// oneUnlessAccepting is eachServer where CACHEASIDE_ACCEPT is set, and only MariaDB otherwise. It
// is for long tests whose figures are reported.
func oneUnlessAccepting(t *testing.T, f func(t *testing.T, e testenv.Engine)) {
	t.Helper()
	if testenv.Accepting {
		eachServer(t, f)
		return
	}
	testenv.OneUnlessAccepting(t, f)
}

// execOn executes a statement whose placeholders are question marks.
func execOn(ctx context.Context, tx *sqlx.Tx, statement string, args ...any) error {
	_, err := tx.ExecContext(ctx, tx.Rebind(statement), args...)
	return err
}
