// Package shop makes rows and changes for the tests of package canal.
package shop

import (
	"errors"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Columns are the columns of the table shop.users.
var Columns = event.NewColumns("ID", "email", "note")

// Row returns a row of shop.users. A value may be ErrUnknown or ErrOmitted.
func Row(id any, email any) event.Row {
	values := make([]event.Value, 3)
	for i, v := range []any{id, email, "private"} {
		switch v {
		case ErrUnknown:
			continue
		case ErrOmitted:
			values[i] = event.Omitted()
			continue
		}
		var err error
		if values[i], err = event.ValueOf(v); err != nil {
			panic(err)
		}
	}
	r, err := event.NewRow(Columns, values)
	if err != nil {
		panic(err)
	}
	return r
}

var (
	// ErrUnknown stands for a column that cannot be read.
	ErrUnknown = errors.New("unknown")

	// ErrOmitted stands for a column that the database has not sent.
	ErrOmitted = errors.New("omitted")
)

// Insert returns the change that inserts r.
func Insert(r event.Row) event.Change {
	return event.Change{Schema: "shop", Table: "users", Kind: event.Insert, After: r}
}

// Update returns the change that replaces before with after.
func Update(before, after event.Row) event.Change {
	return event.Change{Schema: "shop", Table: "users", Kind: event.Update, Before: before, After: after}
}

// Delete returns the change that deletes r.
func Delete(r event.Row) event.Change {
	return event.Change{Schema: "shop", Table: "users", Kind: event.Delete, Before: r}
}

// EachDatabase runs f with SQLite, PostgreSQL and MariaDB, as subtests.
func EachDatabase(t *testing.T, f func(t *testing.T, db *sqlx.DB)) {
	t.Run("sqlite", func(t *testing.T) { f(t, sqlx.NewDb(sqlite.Open(t), "sqlite")) })
	t.Run("postgres", func(t *testing.T) { f(t, sqlx.NewDb(testenv.SharedPostgres(t).DB(t), "pgx")) })
	t.Run("mariadb", func(t *testing.T) { f(t, sqlx.NewDb(testenv.SharedMariaDB(t).DB(t), "mysql")) })
}
