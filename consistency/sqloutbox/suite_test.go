package sqloutbox_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/queuetest"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestQueueContract: an Outbox keeps the contract of a Queue in each database, also with settings
// that restrict statements.
func TestQueueContract(t *testing.T) {
	shared := func(e testenv.Engine) func(t testing.TB) *sql.DB {
		return func(t testing.TB) *sql.DB { return e.Shared(t).DB(t) }
	}
	safe := func(e testenv.Engine) func(t testing.TB) *sql.DB { // the settings of users who fear for their tables
		return func(t testing.TB) *sql.DB {
			db, err := sql.Open("mysql",
				e.Shared(t).DSN(t)+"&sql_safe_updates=1&sql_select_limit=1&max_join_size=1000000")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			return db
		}
	}
	type backend struct {
		dialect sqloutbox.Dialect
		driver  string
		open    func(t testing.TB) *sql.DB
	}
	backends := map[string]backend{
		"mariadb":  {sqloutbox.MySQL, "mysql", safe(testenv.MariaDB)},
		"mysql":    {sqloutbox.MySQL, "mysql", safe(testenv.MySQL)},
		"postgres": {sqloutbox.Postgres, "pgx", func(t testing.TB) *sql.DB { return testenv.SharedPostgres(t).DB(t) }},
		"sqlite":   {sqloutbox.SQLite, "sqlite", sqlite.Open},
	}
	if testenv.Accepting {
		backends["mariadb, defaults"] = backend{sqloutbox.MySQL, "mysql", shared(testenv.MariaDB)}
		backends["mysql, defaults"] = backend{sqloutbox.MySQL, "mysql", shared(testenv.MySQL)}
	}
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			box := func(t testing.TB, db *sqlx.DB, namespace string) consistency.Queue {
				o, err := sqloutbox.New(db, backend.dialect, &sqloutbox.Options{Namespace: namespace})
				if err == nil {
					err = o.CreateTable(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				return o
			}
			boxes := func(namespace func(n int) string) func(t testing.TB, n int) []consistency.Queue {
				return func(t testing.TB, n int) []consistency.Queue {
					db := sqlx.NewDb(backend.open(t), backend.driver)
					var all []consistency.Queue
					for i := range n {
						all = append(all, box(t, db, namespace(i)))
					}
					return all
				}
			}
			queuetest.Run(t, queuetest.Backend{
				New:   boxes(func(int) string { return "suite" }),
				Apart: boxes(func(n int) string { return fmt.Sprint("suite", n) }),
			})
		})
	}
}
