package consistency_test

import (
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

func init() {
	dialects := map[string]sqloutbox.Dialect{"mysql": sqloutbox.MySQL, "sqlite": sqloutbox.SQLite,
		"pgx": sqloutbox.Postgres}
	consistency.NewTestOutbox = func(db *sqlx.DB, table, namespace string) (consistency.TestOutbox, error) {
		return sqloutbox.New(db, dialects[db.DriverName()], &sqloutbox.Options{Table: table, Namespace: namespace})
	}
}
