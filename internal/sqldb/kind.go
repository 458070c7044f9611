// Package sqldb knows the differences between databases that several packages meet: the kind of a
// database by its driver, codes of errors, how names of tables are quoted (they cannot be
// parameters of a statement), and how a statement reads the server's clock.
package sqldb

import (
	"database/sql/driver"
	"reflect"
	"strings"
)

// A Kind is the name of a kind of databases. The zero value means that it is unknown.
type Kind string

// The kinds of databases whose drivers are known.
const (
	MySQL    Kind = "MySQL"
	Postgres Kind = "PostgreSQL"
	SQLite   Kind = "SQLite"
)

// packages are the beginnings of the import paths of drivers.
var packages = map[string]Kind{
	"github.com/go-sql-driver/mysql": MySQL,
	"github.com/jackc/pgx/":          Postgres,
	"github.com/lib/pq":              Postgres,
	"modernc.org/sqlite":             SQLite,
	"github.com/mattn/go-sqlite3":    SQLite,
	"github.com/ncruces/go-sqlite3":  SQLite,
}

// names are the usual names of drivers, for drivers that wrap others: those of sqlx, and more.
var names = map[string]Kind{
	"mysql": MySQL, "nrmysql": MySQL,
	"pgx": Postgres, "pgx/v5": Postgres, "postgres": Postgres, "pq-timeouts": Postgres, "cloudsqlpostgres": Postgres,
	"nrpostgres": Postgres, "cockroach": Postgres,
	"sqlite": SQLite, "sqlite3": SQLite, "nrsqlite3": SQLite,
}

// KindOfName returns the kind by the name of a driver.
func KindOfName(name string) Kind { return names[name] }

// KindOfDriver returns the kind by the type of a driver. A driver that wraps another is unknown.
func KindOfDriver(d driver.Driver) Kind {
	t := reflect.TypeOf(d)
	if t == nil {
		return ""
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for prefix, kind := range packages {
		if strings.HasPrefix(t.PkgPath(), prefix) {
			return kind
		}
	}
	return ""
}

// KindOf returns the kind of a database, an *sqlx.DB, by the type of its driver or else by the
// driver's name.
func KindOf(db interface {
	Driver() driver.Driver
	DriverName() string
}) Kind {
	if kind := KindOfDriver(db.Driver()); kind != "" {
		return kind
	}
	return KindOfName(db.DriverName())
}
