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
}

func databaseOf(t testing.TB, e testenv.Engine) *database {
	t.Helper()
	if e == postgres {
		p := testenv.SharedPostgres(t)
		return &database{p, p.Addr, "pgx", Postgres}
	}
	m := e.Shared(t)
	return &database{m, m.Addr, "mysql", MySQL}
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

// execOn executes a statement whose placeholders are question marks.
func execOn(ctx context.Context, tx *sqlx.Tx, statement string, args ...any) error {
	_, err := tx.ExecContext(ctx, tx.Rebind(statement), args...)
	return err
}
