package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
	"github.com/cacheaside/cacheaside/lock/pglock"
)

// whyTables are the comments before the tables.
var whyTables = map[string]string{
	partOutbox: "Outbox: the invalidations of committed writes. A Writer adds a row in the transaction of the write, " +
		"and deletes it when Redis has confirmed the invalidation. A relay executes what is left.",
	partCheckpoint: "Checkpoint: the position in the database's log up to which a Consumer has handled all changes.",
	partParked: "Parked changes: what a Consumer could not handle, so that the changes after it need not wait. " +
		"It contains rows in clear text.",
	partLocks: "Locks: one row for each lock of package pglock or mysqllock, with its fencing token.",
}

// tableSteps returns the schemas that are missing without --schema, and the tables.
func (s *schema) tableSteps() (all []step, err error) {
	var schemas []string
	for _, part := range []string{partOutbox, partCheckpoint, partParked, partLocks} {
		if !s.has(part) {
			continue
		}
		name := s.tableOf(part)
		if schema, _, qualified := strings.Cut(name, "."); qualified && !slices.Contains(schemas, schema) {
			schemas = append(schemas, schema)
			all = append(all, s.schemaStep(part, schema))
		}
		statements, err := s.create(part, name)
		if err != nil {
			return nil, usagef("--%s-table: %v", part, err)
		}
		statements = withoutComments(statements)
		wanted, err := parseTable(statements)
		if err != nil {
			return nil, err
		}
		all = append(all, step{Part: part, Why: whyTables[part], SQL: statements,
			compare: func(ctx context.Context, c *comparison) error {
				is, err := s.readTable(ctx, c.ask, name)
				if err == nil {
					s.compareTable(c, part, name, statements, wanted, is)
				}
				return err
			}})
	}
	return all, nil
}

// tableOf returns the name of the table of a part.
func (s *schema) tableOf(part string) string {
	name := map[string]string{
		partOutbox: s.outbox, partCheckpoint: s.checkpoint, partParked: s.parked, partLocks: s.locks,
	}[part]
	if s.schema != "" && !strings.Contains(name, ".") {
		name = s.schema + "." + name
	}
	return name
}

func (s *schema) schemaStep(part, name string) step {
	st := step{Part: part, Why: "The schema of the tables.",
		SQL: "CREATE SCHEMA IF NOT EXISTS " + sqldb.QuoteStandard(name) + ";"}
	query := "SELECT 1 AS one FROM pg_namespace WHERE nspname = $1"
	if s.dialect == sqloutbox.MySQL {
		st.SQL = "CREATE DATABASE IF NOT EXISTS " + sqldb.Quote(name) + ";"
		query = "SELECT 1 AS one FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = ?"
	}
	st.compare = func(ctx context.Context, c *comparison) error {
		rows, err := c.ask(ctx, query, name)
		if err == nil && len(rows) == 0 {
			c.add(part, st.SQL, "the schema %s does not exist, or the user of the DSN has no right on it", name)
		}
		return err
	}
	return st
}

// create returns the statements of the library that create the table of a part.
func (s *schema) create(part, name string) (string, error) {
	driverName := map[sqloutbox.Dialect]string{
		sqloutbox.Postgres: "pgx", sqloutbox.MySQL: "mysql", sqloutbox.SQLite: "sqlite",
	}[s.dialect]
	db := sqlx.NewDb(sql.OpenDB(noDatabase{}), driverName)
	defer db.Close() //nolint:errcheck // it has no connection
	switch {
	case part == partOutbox:
		return s.dialect.Schema(name)
	case part == partCheckpoint:
		checkpoint, err := canal.NewSQLCheckpoint(db, &canal.SQLCheckpointOptions{Table: name})
		if err != nil {
			return "", err
		}
		return checkpoint.Schema() + ";", nil
	case part == partParked:
		table, err := parking.NewTable(db, &parking.TableOptions{Table: name})
		if err != nil {
			return "", err
		}
		return table.Schema() + ";", nil
	case s.dialect == sqloutbox.Postgres:
		text, err := pglock.Schema(&pglock.Options{Table: name})
		return text + ";", err
	}
	text, err := mysqllock.Schema(&mysqllock.Options{Table: name})
	return text + ";", err
}

// noDatabase is a connector for functions that only need the name of a driver.
type noDatabase struct{}

var errNoDatabase = errors.New("there is no database")

func (noDatabase) Connect(context.Context) (driver.Conn, error) { return nil, errNoDatabase }
func (noDatabase) Driver() driver.Driver                        { return noDatabase{} }
func (noDatabase) Open(string) (driver.Conn, error)             { return nil, errNoDatabase }

func withoutComments(statements string) string {
	var all []string
	for line := range strings.Lines(statements) {
		if !strings.HasPrefix(line, "--") {
			all = append(all, line)
		}
	}
	return strings.TrimSpace(strings.Join(all, ""))
}

// wantedTable is what a CREATE TABLE statement of the library creates.
type wantedTable struct {
	columns []wantedColumn
	primary []string
	index   []string // the columns of the second index; nil: none
	engine  bool     // the table needs InnoDB
}

type wantedColumn struct{ name, definition, kind string }

var (
	tableBody = regexp.MustCompile(
		`(?s)CREATE TABLE IF NOT EXISTS [^ ]+ \((.*?)\)( WITH \(.*?\)| STRICT.*?| ENGINE.*?)?;`)
	primaryKey   = regexp.MustCompile(`^PRIMARY KEY \((.*)\)$`)
	anotherIndex = regexp.MustCompile(`(?m)(?:^CREATE INDEX IF NOT EXISTS [^ ]+ ON [^ ]+|^\s*KEY due) \(([a-z_, ]+)\)`)
	columnType   = regexp.MustCompile(`^[A-Z]+(\([0-9]+\))?`)
)

// parseTable reads a statement of the library. Tests compare the result with servers.
func parseTable(statements string) (t wantedTable, err error) {
	body := tableBody.FindStringSubmatch(statements)
	if body == nil {
		return t, fmt.Errorf("the statement cannot be read: %s", statements)
	}
	t.engine = strings.Contains(body[2], "InnoDB")
	for _, line := range topLevel(body[1]) {
		if key := primaryKey.FindStringSubmatch(line); key != nil {
			t.primary = list(key[1])
			continue
		}
		name, definition, _ := strings.Cut(line, " ")
		if name == "KEY" {
			continue
		}
		if rest, ok := strings.CutSuffix(definition, " PRIMARY KEY"); ok {
			t.primary, definition = []string{name}, rest
		}
		t.columns = append(t.columns, wantedColumn{name, definition, canonical(columnType.FindString(definition))})
	}
	if index := anotherIndex.FindStringSubmatch(statements); index != nil {
		t.index = list(index[1])
	}
	return t, nil
}

// topLevel splits a text at the commas that are not within parentheses.
func topLevel(text string) (all []string) {
	depth, from := 0, 0
	for i, c := range text {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			all, from = append(all, strings.TrimSpace(text[from:i])), i+1
		}
	}
	return append(all, strings.TrimSpace(text[from:]))
}

var integerWidth = regexp.MustCompile(`^((?:tiny|small|medium|big)?int)\([0-9]+\)`)

// canonical returns the name of a type as the comparison uses it, for the names that statements and
// servers give it. MariaDB shows a width of integers, which has no effect.
func canonical(kind string) string {
	kind = strings.ToLower(kind)
	kind = integerWidth.ReplaceAllString(kind, "$1")
	switch kind {
	case "integer":
		return "int"
	case "timestamptz":
		return "timestamp with time zone"
	}
	if size, ok := strings.CutPrefix(kind, "character varying"); ok {
		return "varchar" + size
	}
	return kind
}

// actualTable is a table of a database. It has no columns if it does not exist.
type actualTable struct {
	columns  map[string]actualColumn
	indexes  []actualIndex
	engine   string
	occupied string // the table that has an index with the name of the wanted one, if it is another
}

type actualColumn struct {
	kind     string
	nullable bool
}

type actualIndex struct {
	name, columns  string
	primary, valid bool
}

// compareTable adds the differences between a table and the statement that creates it.
func (s *schema) compareTable(c *comparison, part, name, create string, wanted wantedTable, is actualTable) {
	if len(is.columns) == 0 {
		c.add(part, create, "the table %s does not exist, or the user of the DSN has no right on it", name)
		return
	}
	alter := "ALTER TABLE " + s.quoted(name) + " "
	for _, w := range wanted.columns {
		got, ok := is.columns[w.name]
		switch {
		case !ok:
			c.add(part, alter+"ADD COLUMN "+w.name+" "+w.definition+";", "the table %s has no column %s", name, w.name)
		case got.kind != w.kind:
			c.add(part, alter+s.retyped(w)+";", "the column %s of the table %s has the type %s: it must be %s",
				w.name, name, got.kind, w.kind)
		case got.nullable:
			c.add(part, alter+s.notNull(w)+";", "the column %s of the table %s is not NOT NULL", w.name, name)
		}
	}
	if wanted.engine && !strings.EqualFold(is.engine, "InnoDB") {
		c.add(part, alter+"ENGINE = InnoDB;", "the table %s has the engine %s, which has no transactions", name,
			is.engine)
	}
	s.compareIndexes(c, part, name, create, wanted, is)
}

// retyped returns the clause of ALTER TABLE that gives a column its type.
func (s *schema) retyped(w wantedColumn) string {
	if s.dialect == sqloutbox.MySQL {
		return "MODIFY COLUMN " + w.name + " " + w.definition
	}
	kind := columnType.FindString(w.definition)
	return fmt.Sprintf("ALTER COLUMN %s TYPE %s USING %s::text::%s", w.name, kind, w.name, kind)
}

func (s *schema) notNull(w wantedColumn) string {
	if s.dialect == sqloutbox.MySQL {
		return s.retyped(w)
	}
	return "ALTER COLUMN " + w.name + " SET NOT NULL"
}

func (s *schema) compareIndexes(c *comparison, part, name, create string, wanted wantedTable, is actualTable) {
	alter := "ALTER TABLE " + s.quoted(name) + " "
	primary := "ADD PRIMARY KEY (" + strings.Join(wanted.primary, ", ") + ");"
	i := slices.IndexFunc(is.indexes, func(x actualIndex) bool { return x.primary })
	switch {
	case i < 0:
		c.add(part, alter+primary, "the table %s has no primary key", name)
	case is.indexes[i].columns != strings.Join(wanted.primary, ","):
		drop := "DROP PRIMARY KEY, "
		if s.dialect == sqloutbox.Postgres {
			drop = "DROP CONSTRAINT " + quoteRole(is.indexes[i].name) + ", "
		}
		c.add(part, alter+drop+primary, "the primary key of the table %s has the columns (%s): they must be (%s)", name,
			is.indexes[i].columns, strings.Join(wanted.primary, ","))
	}
	if wanted.index == nil {
		return
	}
	index := indexName(s.dialect, name)
	repair := alter + "ADD KEY due (" + strings.Join(wanted.index, ", ") + ");"
	drop := alter + "DROP KEY due;\n"
	if s.dialect == sqloutbox.Postgres {
		_, repair, _ = strings.Cut(create, ";\n")
		schema, _, _ := strings.Cut(s.quoted(name), ".")
		drop = "DROP INDEX " + schema + "." + sqldb.QuoteStandard(index) + ";\n"
	}
	i = slices.IndexFunc(is.indexes, func(x actualIndex) bool { return x.name == index })
	switch {
	case i < 0 && is.occupied != "":
		c.add(part, "", "the table %s has no index %s, and the table %s has one of that name: rename that", name, index,
			is.occupied)
	case i < 0:
		c.add(part, repair, "the table %s has no index %s", name, index)
	case !is.indexes[i].valid || is.indexes[i].columns != strings.Join(wanted.index, ","):
		c.add(part, drop+repair, "the index %s of the table %s is not valid, or does not have the columns (%s)", index,
			name, strings.Join(wanted.index, ", "))
	}
}

// indexName returns the name of the second index of the outbox. See sqloutbox.
func indexName(dialect sqloutbox.Dialect, table string) string {
	if dialect == sqloutbox.MySQL {
		return "due"
	}
	return table[strings.IndexByte(table, '.')+1:] + "_due"
}

// quoted returns the name of a table for statements.
func (s *schema) quoted(name string) string {
	if s.dialect == sqloutbox.Postgres {
		return sqldb.OwnPostgres(name)
	}
	return sqldb.Quote(name)
}

// readTable reads a table from the catalog.
func (s *schema) readTable(ctx context.Context, ask asker, name string) (is actualTable, err error) {
	columns, indexes, args := postgresColumns, postgresIndexes, []any{s.quoted(name)}
	if s.dialect == sqloutbox.MySQL {
		schema, table := splitName(name)
		columns, indexes, args = mysqlColumns, mysqlIndexes, []any{schema, table}
	}
	rows, err := ask(ctx, columns, args...)
	if err != nil {
		return is, err
	}
	is.columns = map[string]actualColumn{}
	for _, r := range rows {
		is.columns[strings.ToLower(r["name"])] = actualColumn{canonical(r["type"]), r["nullable"] == "yes"}
		is.engine = r["engine"]
	}
	if rows, err = ask(ctx, indexes, args...); err != nil {
		return is, err
	}
	for _, r := range rows {
		is.indexes = append(is.indexes, actualIndex{r["name"], r["columns"], r["is_primary"] == "yes",
			r["valid"] == "yes"})
	}
	if s.dialect == sqloutbox.Postgres {
		schema, _, _ := strings.Cut(s.quoted(name), ".")
		rows, err = ask(ctx, postgresOccupied, strings.Trim(schema, `"`), indexName(s.dialect, name), s.quoted(name))
		if len(rows) > 0 {
			is.occupied = rows[0]["name"]
		}
	}
	return is, err
}

// splitName returns the schema and the name of a table. The schema is "" if the name has none.
func splitName(name string) (schema, table string) {
	if schema, table, ok := strings.Cut(name, "."); ok {
		return schema, table
	}
	return "", name
}

const (
	postgresColumns = `SELECT attname::text AS name, format_type(atttypid, atttypmod) AS type,
	CASE WHEN attnotnull THEN 'no' ELSE 'yes' END AS nullable, '' AS engine
	FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`

	postgresIndexes = `SELECT c.relname::text AS name, CASE WHEN i.indisprimary THEN 'yes' ELSE 'no' END AS is_primary,
	CASE WHEN i.indisvalid AND i.indpred IS NULL THEN 'yes' ELSE 'no' END AS valid,
	(SELECT string_agg(pg_get_indexdef(i.indexrelid, n, true), ',' ORDER BY n)
		FROM generate_series(1, i.indnkeyatts) AS n) AS columns
	FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass($1)`

	postgresOccupied = `SELECT coalesce(i.indrelid, c.oid)::regclass::text AS name FROM pg_class c
	JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_index i ON i.indexrelid = c.oid
	WHERE n.nspname = $1 AND c.relname = $2 AND i.indrelid IS DISTINCT FROM to_regclass($3)`

	mysqlColumns = `SELECT c.COLUMN_NAME AS name, c.COLUMN_TYPE AS type, LOWER(c.IS_NULLABLE) AS nullable,
	t.ENGINE AS engine FROM information_schema.COLUMNS c JOIN information_schema.TABLES t
	ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
	WHERE c.TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND c.TABLE_NAME = ?`

	mysqlIndexes = `SELECT INDEX_NAME AS name, IF(INDEX_NAME = 'PRIMARY', 'yes', 'no') AS is_primary,
	'yes' AS valid, GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX) AS columns
	FROM information_schema.STATISTICS
	WHERE TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? GROUP BY INDEX_NAME`
)
