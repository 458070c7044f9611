package consistency

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/cacheaside/cacheaside/internal/sqlname"
)

// A Dialect is the kind of database of an SQLOutbox.
type Dialect uint8

const (
	// MySQL is MySQL 8.0.17 or later, or MariaDB 10.6 or later (SKIP LOCKED), with the driver
	// github.com/go-sql-driver/mysql.
	MySQL Dialect = iota + 1

	// SQLite is SQLite 3.37 or later (STRICT tables), with any driver.
	SQLite
)

//go:embed schema/mysql.sql
var mysqlSchema string

//go:embed schema/sqlite.sql
var sqliteSchema string

const defaultTable = "cacheaside_outbox"

// Schema returns the statements that create the table of an SQLOutbox if it does not exist, for
// your migrations: those of consistency/schema/mysql.sql or sqlite.sql, with the name of the
// table. For MySQL the name can be schema.table. In SQLite the table is in the main database,
// because only there it shares a transaction with the rows.
func (d Dialect) Schema(table string) (string, error) {
	s, err := newStatements(d, table)
	if err != nil {
		return "", err
	}
	return s.schema(), nil
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,59}$`) // in SQLite the name of the index is longer by "_due"

// newStatements checks the dialect and the name of the table, which are parts of all statements.
func newStatements(dialect Dialect, table string) (statements, error) {
	s := statements{dialect: dialect, name: table}
	if dialect != MySQL && dialect != SQLite {
		return s, fmt.Errorf("consistency: the outbox' Dialect %d: MySQL or SQLite", dialect)
	}
	schema, rest, qualified := strings.Cut(table, ".")
	if !identifier.MatchString(schema) || qualified && (dialect == SQLite || !identifier.MatchString(rest)) {
		return s, fmt.Errorf("consistency: the outbox' Table %q: an identifier of 1 to 60 letters, digits and '_', in MySQL one or schema.table", table)
	}
	s.table = sqlname.Quote(table)
	return s, nil
}

// newKey returns how to give a table of an older release the current primary key.
func (s statements) newKey() string {
	if s.dialect == SQLite {
		return "copy it into a new one"
	}
	return "ALTER TABLE " + s.table + " DROP PRIMARY KEY, ADD PRIMARY KEY (namespace, id)"
}

func (s statements) schema() string {
	if s.dialect == SQLite {
		return strings.NewReplacer(defaultTable+"_due", "`"+s.name+"_due`", defaultTable, s.table).Replace(sqliteSchema)
	}
	return strings.ReplaceAll(mysqlSchema, defaultTable, s.table)
}
