// Package shop makes rows and changes for the tests of package canal.
package shop

import (
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Columns are those of shop.users.
var Columns = event.NewColumns("ID", "email", "note")

// Row is one of shop.users.
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

// ErrUnknown is a column that cannot be read, ErrOmitted one that the database has not told of.
var ErrUnknown, ErrOmitted = errors.New("unknown"), errors.New("omitted")

// Insert is the change that inserts r.
func Insert(r event.Row) event.Change {
	return event.Change{Schema: "shop", Table: "users", Kind: event.Insert, After: r}
}

// Update is the change that makes before into after.
func Update(before, after event.Row) event.Change {
	return event.Change{Schema: "shop", Table: "users", Kind: event.Update, Before: before, After: after}
}

// Delete is the change that deletes r.
func Delete(r event.Row) event.Change {
	return event.Change{Schema: "shop", Table: "users", Kind: event.Delete, Before: r}
}

// EachDatabase runs f with an SQLite and a MariaDB.
func EachDatabase(t *testing.T, f func(t *testing.T, db *sqlx.DB)) {
	t.Run("sqlite", func(t *testing.T) { f(t, sqlx.NewDb(sqlite.Open(t), "sqlite")) })
	t.Run("mariadb", func(t *testing.T) { f(t, sqlx.NewDb(testenv.SharedMariaDB(t).DB(t), "mysql")) })
}
