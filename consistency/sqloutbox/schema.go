package sqloutbox

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// A Dialect is the kind of database of an Outbox.
type Dialect uint8

const (
	// MySQL is MySQL 8.0.17 or later, or MariaDB 10.6 or later (SKIP LOCKED), with the driver
	// github.com/go-sql-driver/mysql.
	MySQL Dialect = iota + 1

	// SQLite is SQLite 3.37 or later (STRICT tables), with any driver.
	SQLite

	// Postgres is PostgreSQL 11 or later (the setting jit; tested with 15, 17 and 18), with the
	// driver github.com/jackc/pgx/v5/stdlib.
	Postgres
)

// fits returns an error if db is known to be another kind of database.
func (d Dialect) fits(db *sqlx.DB) error {
	want := map[Dialect]sqldb.Kind{
		MySQL: sqldb.MySQL, SQLite: sqldb.SQLite, Postgres: sqldb.Postgres,
	}[d]
	if kind := sqldb.KindOf(db); kind != "" && kind != want {
		return fmt.Errorf("the dialect is that of %s, and db is a %s database", want, kind)
	}
	return nil
}

//go:embed schema/mysql.sql
var mysqlSchema string

//go:embed schema/sqlite.sql
var sqliteSchema string

//go:embed schema/postgres.sql
var postgresSchema string

const defaultTable = "cacheaside_outbox"

const maxPostgresName = 63

// Schema returns the statements that create the table of an Outbox if it does not exist, for your
// migrations: those of consistency/sqloutbox/schema/mysql.sql, sqlite.sql or postgres.sql, with the
// name of the table. For MySQL and PostgreSQL the name can be schema.table. In SQLite the table is
// in the main database, because only there it shares a transaction with the rows.
func (d Dialect) Schema(table string) (string, error) {
	s, err := newStatements(d, table)
	if err != nil {
		return "", err
	}
	return s.schema(), nil
}

// identifier leaves room for "_due", by which the name of the index is longer except in MySQL.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,59}$`)

// newStatements checks the dialect and the name of the table, which are parts of all statements.
func newStatements(dialect Dialect, table string) (statements, error) {
	s := statements{dialect: dialect, name: table}
	if dialect < MySQL || dialect > Postgres {
		return s, fmt.Errorf("sqloutbox: the outbox' Dialect %d: MySQL, SQLite or Postgres", dialect)
	}
	schema, rest, qualified := strings.Cut(table, ".")
	if !identifier.MatchString(schema) || qualified && (dialect == SQLite || !identifier.MatchString(rest)) {
		return s, fmt.Errorf("sqloutbox: the outbox' Table %q: an identifier of 1 to 60 letters, digits and "+
			"'_', in MySQL and PostgreSQL one or schema.table", table)
	}
	switch {
	case dialect == Postgres && len(s.index()) > maxPostgresName:
		return s, fmt.Errorf("sqloutbox: the outbox' Table %q: PostgreSQL cuts names of more than %d bytes, and "+
			"its index is %s", table, maxPostgresName, s.index())
	case dialect != Postgres:
		s.table = sqldb.Quote(table)
	default:
		s.table = sqldb.OwnPostgres(table)
	}
	return s, nil
}

// newKey returns how to give a table of an older release the current primary key.
func (s statements) newKey() string {
	if s.dialect == SQLite {
		return "copy it into a new one"
	}
	return "ALTER TABLE " + s.table + " DROP PRIMARY KEY, ADD PRIMARY KEY (namespace, id)"
}

// index returns the name of the index in SQLite and PostgreSQL, in which it is not the table's own.
func (s statements) index() string { return s.name[strings.IndexByte(s.name, '.')+1:] + "_due" }

// ownIndexes returns the query that counts the indexes of the table that have the name of its
// index. In MySQL the names of indexes belong to their tables, and there is no query.
func (s statements) ownIndexes() string {
	switch s.dialect {
	case SQLite:
		return fmt.Sprintf("SELECT count(*) FROM main.sqlite_master WHERE type = 'index' AND name = '%s' "+
			"COLLATE NOCASE AND tbl_name = '%s' COLLATE NOCASE", s.index(), s.name)
	case Postgres:
		return fmt.Sprintf("SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE "+
			"indrelid = '%s'::regclass AND relname = '%s'", s.table, s.index())
	}
	return ""
}

func (s statements) schema() string {
	switch s.dialect {
	case SQLite:
		names := strings.NewReplacer(defaultTable+"_due", sqldb.Quote(s.index()), defaultTable, s.table)
		return names.Replace(sqliteSchema)
	case Postgres:
		names := strings.NewReplacer(defaultTable+"_due", sqldb.QuoteStandard(s.index()), defaultTable, s.table)
		return names.Replace(postgresSchema)
	}
	return strings.ReplaceAll(mysqlSchema, defaultTable, s.table)
}
