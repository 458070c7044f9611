package sqldb

import (
	"testing"

	"github.com/jmoiron/sqlx"
)

// TestKindOfName: the kind by a driver's name agrees with the placeholders that sqlx uses for it.
func TestKindOfName(t *testing.T) {
	for name, want := range map[string]Kind{
		"postgres": Postgres, "pgx": Postgres, "pq-timeouts": Postgres, "cloudsqlpostgres": Postgres, "nrpostgres": Postgres, "cockroach": Postgres,
		"mysql": MySQL, "nrmysql": MySQL,
		"sqlite3": SQLite, "nrsqlite3": SQLite,
		"ql": "", "sqlserver": "", "oci8": "", "my own": "",
	} {
		if got := KindOfName(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if kind := sqlx.BindType(name); want != "" && (kind == sqlx.DOLLAR) != (want == Postgres) {
			t.Errorf("%s: %q, and its placeholders are of the kind %d", name, want, kind)
		}
	}
}
