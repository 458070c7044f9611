package main

import (
	"context"
	"database/sql"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
	"github.com/cacheaside/cacheaside/lock/pglock"
)

// withSchema is a database of a test with the tables of an application, and the flags that name
// what belongs to it.
type withSchema struct {
	*world
	db    *sqlx.DB
	flags []string
	name  string // of the database
	app   string // the user of the programs
	log   string // the user who reads the log
}

// onPostgresSchema returns a database in which the output of the command was executed.
func onPostgresSchema(t *testing.T, p *testenv.Postgres) *withSchema {
	t.Helper()
	name := p.Database(t)
	s := &withSchema{world: &world{t, map[string]string{"CACHEASIDE_POSTGRES_DSN": p.DSN(t)}},
		db: sqlx.NewDb(p.DB(t), "pgx"), name: name, app: "app_" + name, log: "log_" + name}
	s.flags = []string{"schema", "postgres", "--tables", "products,parts", "--full-tables", "pages", "--slot", name,
		"--app-role", s.app, "--log-role", s.log, "--writer-role", "writer_" + name}
	s.run("CREATE TABLE products (id INT PRIMARY KEY); CREATE TABLE pages (id INT PRIMARY KEY, tag TEXT);" +
		"CREATE TABLE parts (id INT PRIMARY KEY) PARTITION BY RANGE (id);" +
		"CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (10)")
	t.Cleanup(func() {
		s.db.Exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = " +
			"'" + name + "'")
		for _, role := range []string{s.app, s.log, "writer_" + name} {
			s.db.Exec("DROP OWNED BY " + role)
			s.db.Exec("DROP ROLE " + role)
		}
	})
	return s
}

// onMySQLSchema is onPostgresSchema for MariaDB and MySQL.
func onMySQLSchema(t *testing.T, m *testenv.SQLServer) *withSchema {
	t.Helper()
	name := m.Database(t)
	s := &withSchema{world: &world{t, map[string]string{"CACHEASIDE_MYSQL_DSN": m.DSN(t)}},
		db: sqlx.NewDb(m.DB(t), "mysql"), name: name, app: "app_" + name, log: "log_" + name}
	s.flags = []string{"schema", "mysql", "--tables", "products", "--app-role", s.app, "--log-role", s.log}
	s.run("CREATE TABLE products (id INT PRIMARY KEY)")
	t.Cleanup(func() {
		s.db.Exec("DROP USER '" + s.app + "'@'%'")
		s.db.Exec("DROP USER '" + s.log + "'@'%'")
	})
	return s
}

// run executes statements one by one, as the clients of the databases do.
func (s *withSchema) run(text string) {
	s.Helper()
	for _, statement := range statementsOf(text) {
		if _, err := s.db.ExecContext(s.Context(), statement); err != nil {
			s.Fatalf("%s: %v", statement, err)
		}
	}
}

// statementsOf splits SQL at semicolons, except within the blocks of PostgreSQL.
func statementsOf(text string) (all []string) {
	var statement strings.Builder
	inBlock := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--") {
			continue
		}
		if strings.Contains(line, "$$") {
			inBlock = !inBlock
		}
		code, _, _ := strings.Cut(line, " --")
		parts := strings.SplitAfter(code, ";")
		if inBlock {
			parts = []string{code}
		}
		for _, part := range parts {
			statement.WriteString(part)
			if !inBlock && strings.HasSuffix(part, ";") {
				all = append(all, strings.TrimSpace(statement.String()))
				statement.Reset()
			}
		}
	}
	if rest := strings.TrimSpace(statement.String()); rest != "" {
		all = append(all, rest)
	}
	return all
}

// checked calls the command with --check.
func (s *withSchema) checked(more ...string) outcome {
	s.Helper()
	return s.call(slices.Concat(s.flags, []string{"--check"}, more)...)
}

func (s *withSchema) complete(more ...string) {
	s.Helper()
	if o := s.checked(more...); o.code != exitOK || o.err != "" || !strings.Contains(o.out, "Nothing is missing") {
		s.Errorf("exit code %d\n%s%s", o.code, o.out, o.err)
	}
}

// damaged executes statements, and asserts that the check names the damage and that its output
// repairs it.
func (s *withSchema) damaged(damage, says string) {
	s.Helper()
	s.run(damage)
	o := s.checked()
	if o.code != exitFailed || !strings.Contains(o.out, says) || !strings.Contains(o.err, "lacks") {
		s.Errorf("after %s: exit code %d, want %q in\n%s%s", damage, o.code, says, o.out, o.err)
		return
	}
	s.run(o.out)
	if o := s.checked(); o.code != exitOK {
		s.Errorf("after the repair of %s: exit code %d\n%s%s", damage, o.code, o.out, o.err)
	}
}

// works uses all tables as the user of the programs.
func (s *withSchema) works(db *sqlx.DB, dialect sqloutbox.Dialect, newLocker func(db *sql.DB) (*lock.Locker, error)) {
	s.Helper()
	ctx := s.Context()
	outbox, err := sqloutbox.New(db, dialect, &sqloutbox.Options{Namespace: "shop"})
	s.check(err)
	s.check(outbox.Put(ctx, item(1, "42")))
	testenv.Eventually(s, "an item", func() bool {
		items, err := outbox.Claim(ctx, 1, time.Minute)
		s.check(err)
		if len(items) == 0 {
			return false
		}
		s.check(outbox.Done(ctx, items[0]))
		return true
	})
	checkpoint, err := canal.NewSQLCheckpoint(db, nil)
	s.check(err)
	s.check(checkpoint.Save(ctx, "here", 1))
	parked, err := parking.NewTable(db, nil)
	s.check(err)
	s.check(parked.Park(ctx, parking.Parked{Reason: "a test"}))
	rows, err := parked.List(ctx, 0, 1)
	s.check(err)
	if _, err := parked.Remove(ctx, rows[0].ID); err != nil {
		s.Error(err)
	}
	if newLocker == nil {
		return
	}
	locker, err := newLocker(db.DB)
	s.check(err)
	lease, err := locker.TryAcquire(ctx, "nightly", nil)
	s.check(err)
	s.check(lease.Extend(ctx))
	s.check(lease.Release())
}

// TestSchemaPostgres: a program with the printed role works after a superuser has executed the
// printed SQL in an empty database, and the check finds nothing.
func TestSchemaPostgres(t *testing.T) {
	p := testenv.SharedPostgres(t)
	s := onPostgresSchema(t, p)
	printed := s.ok(s.flags...)
	s.run(printed)
	s.run(printed) // again
	s.complete()
	dsn := strings.Replace(p.DSN(t), p.User+"@", s.app+"@", 1)
	db, err := sqlx.Open("pgx", dsn)
	s.check(err)
	t.Cleanup(func() { db.Close() })
	s.works(db, sqloutbox.Postgres, func(db *sql.DB) (*lock.Locker, error) { return pglock.New(db, nil) })
	s.readsLog(strings.Replace(p.DSN(t), p.User+"@", s.log+"@", 1))
	s.env["CACHEASIDE_POSTGRES_DSN"] = dsn
	s.flags = []string{"schema", "postgres", "--slot", s.name, "--log-role", s.log}
	s.complete() // as the user of the programs, whose rights are compared
	s.run("REVOKE UPDATE ON cacheaside_locks FROM " + s.app)
	if o := s.checked(); o.code != exitFailed || !strings.Contains(o.out, s.app+" lacks a right") {
		t.Errorf("%+v", o)
	}
}

// readsLog reads the slot as the user who reads the log.
func (s *withSchema) readsLog(dsn string) {
	s.Helper()
	c, err := pgconn.Connect(s.Context(), dsn+"&replication=database")
	s.check(err)
	defer c.Close(context.WithoutCancel(s.Context()))
	s.check(c.Exec(s.Context(), "SELECT pg_logical_slot_peek_binary_changes('"+s.name+"', NULL, NULL, "+
		"'proto_version', '1', 'publication_names', 'cacheaside')").Close())
}

// TestSchemaPostgresNewer: what only later versions have is used there.
func TestSchemaPostgresNewer(t *testing.T) {
	s := onPostgresSchema(t, testenv.StartPostgresFrom(t, 18, "wal_level=logical"))
	s.run(s.ok(s.flags...))
	s.complete()
	var failover bool
	s.check(s.db.Get(&failover, "SELECT failover FROM pg_replication_slots WHERE slot_name = $1", s.name))
	if !failover {
		t.Error("the slot has no failover")
	}
}

// TestSchemaPostgresDamage: the check names what is missing or differs, and prints what repairs it.
func TestSchemaPostgresDamage(t *testing.T) {
	s := onPostgresSchema(t, testenv.SharedPostgres(t))
	s.damaged("", "cacheaside_outbox does not exist") // an empty database is repaired, too
	for _, c := range []struct{ damage, says string }{
		{"DROP TABLE cacheaside_outbox", "cacheaside_outbox does not exist"},
		{"DROP INDEX cacheaside_outbox_due", "no index cacheaside_outbox_due"},
		{"DROP INDEX cacheaside_outbox_due; CREATE INDEX cacheaside_outbox_due ON cacheaside_outbox (due)",
			"is not valid"},
		{"ALTER TABLE cacheaside_outbox DROP COLUMN admit", "no column admit"},
		{"ALTER TABLE cacheaside_outbox ALTER due TYPE INT", "due of the table cacheaside_outbox has the type int"},
		{"ALTER TABLE cacheaside_checkpoint DROP CONSTRAINT cacheaside_checkpoint_pkey",
			"cacheaside_checkpoint has no primary key"},
		{"ALTER TABLE cacheaside_parked ALTER parked DROP NOT NULL", "is not NOT NULL"},
		{"ALTER TABLE cacheaside_locks ENABLE ROW LEVEL SECURITY", "row-level security"},
		{"DROP PUBLICATION cacheaside", "publication cacheaside does not exist"},
		{"ALTER PUBLICATION cacheaside SET (publish = 'insert')", "all operations"},
		{"ALTER PUBLICATION cacheaside DROP TABLE products", "lacks the table products"},
		{"ALTER PUBLICATION cacheaside DROP TABLE parts", "lacks the table parts"},
		{"ALTER TABLE pages REPLICA IDENTITY DEFAULT", "not FULL"},
		{"ALTER TABLE parts_1 REPLICA IDENTITY NOTHING", "no replica identity"},
		{"SELECT pg_drop_replication_slot('" + s.name + "')", "slot " + s.name + " does not exist"},
		{"REVOKE DELETE ON cacheaside_parked FROM " + s.app, "lacks a right on the table cacheaside_parked"},
		{"REVOKE SELECT (id) ON cacheaside_outbox FROM writer_" + s.name,
			"lacks a right on the table cacheaside_outbox"},
		{"ALTER ROLE " + s.log + " NOREPLICATION", "lacks the attribute REPLICATION"},
		{"DROP ROLE " + s.log, "role " + s.log + " does not exist"},
	} {
		s.damaged(c.damage, c.says)
	}
	s.run("DROP INDEX cacheaside_outbox_due; CREATE INDEX cacheaside_outbox_due ON products (id)")
	if o := s.checked(); !strings.Contains(o.out, "rename that") {
		t.Errorf("%+v", o)
	}
	s.run("DROP TABLE products CASCADE")
	if o := s.checked(); !strings.Contains(o.out, "products, which a Consumer should follow, does not exist") {
		t.Errorf("%+v", o)
	}
}

// TestSchemaPostgresSettings: wal_level is compared. A slot is not possible without it.
func TestSchemaPostgresSettings(t *testing.T) {
	s := onPostgresSchema(t, testenv.StartPostgres(t, "wal_level=replica"))
	o := s.checked("--parts", "log")
	s.says(o.out, "wal_level is replica", "ALTER SYSTEM SET wal_level = logical", "the slot "+s.name+" does not exist")
	if o.code != exitFailed {
		t.Error(o.code)
	}
}

// TestSchemaNames: all names can be chosen, and the tables can be in a schema of their own.
func TestSchemaNames(t *testing.T) {
	s := onPostgresSchema(t, testenv.SharedPostgres(t))
	s.flags = append(s.flags, "--schema", "ca", "--outbox-table", "Outbox", "--checkpoint-table", "x.positions",
		"--publication", "Shop")
	s.run(s.ok(s.flags...))
	s.complete()
	s.damaged("REVOKE USAGE ON SCHEMA ca FROM "+s.app, "lacks USAGE on the schema ca")
	s.damaged("DROP SCHEMA x CASCADE", "schema x does not exist")
	s.damaged(`DROP INDEX ca."Outbox_due"`, "no index Outbox_due")
	s.damaged("ALTER TABLE ca.\"Outbox\" DROP CONSTRAINT \"Outbox_pkey\", ADD PRIMARY KEY (id)", "primary key")
}

// TestSchemaMySQL is TestSchemaPostgres and TestSchemaPostgresDamage for MariaDB and MySQL.
func TestSchemaMySQL(t *testing.T) {
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		m := e.Shared(t)
		s := onMySQLSchema(t, m)
		printed := s.ok(s.flags...)
		s.run(printed)
		s.run(printed)
		s.complete()
		s.run("ALTER USER '" + s.app + "'@'%' ACCOUNT UNLOCK")
		config, err := mysql.ParseDSN(m.DSN(t))
		s.check(err)
		config.User = s.app
		db, err := sqlx.Open("mysql", config.FormatDSN())
		s.check(err)
		t.Cleanup(func() { db.Close() })
		s.works(db, sqloutbox.MySQL, func(db *sql.DB) (*lock.Locker, error) { return mysqllock.New(db, nil) })
		for _, c := range []struct{ damage, says string }{
			{"DROP TABLE cacheaside_outbox", "cacheaside_outbox does not exist"},
			{"ALTER TABLE cacheaside_locks DROP COLUMN owner", "no column owner"},
			{"ALTER TABLE cacheaside_outbox DROP KEY due", "no index due"},
			{"ALTER TABLE cacheaside_outbox DROP KEY due, ADD KEY due (due)",
				"the index due of the table cacheaside_outbox is not valid"},
			{"ALTER TABLE cacheaside_outbox MODIFY due INT NOT NULL",
				"due of the table cacheaside_outbox has the type int"},
			{"ALTER TABLE cacheaside_parked MODIFY parked LONGTEXT NULL", "is not NOT NULL"},
			{"ALTER TABLE cacheaside_outbox DROP PRIMARY KEY", "has no primary key"},
			{"ALTER TABLE cacheaside_outbox DROP PRIMARY KEY, ADD PRIMARY KEY(id)",
				"primary key of the table cacheaside_outbox"},
			{"ALTER TABLE cacheaside_outbox ENGINE = MyISAM", "has the engine MyISAM"},
			{"REVOKE UPDATE ON cacheaside_locks FROM '" + s.app + "'@'%'", "lacks UPDATE on the table cacheaside_locks"},
			{"REVOKE SELECT ON products FROM '" + s.log + "'@'%'", "lacks SELECT on the table products"},
			{"REVOKE REPLICATION SLAVE ON *.* FROM '" + s.log + "'@'%'", "lacks REPLICATION SLAVE on the server"},
			{"DROP USER '" + s.log + "'@'%'", "user " + s.log + "@% does not exist"},
		} {
			s.damaged(c.damage, c.says)
		}
		s.env["CACHEASIDE_MYSQL_DSN"] = config.FormatDSN() // its own rights, and a note about the other user
		s.flags = []string{"schema", "mysql", "--log-role", s.log}
		if o := s.checked(); o.code != exitOK || strings.Count(o.err, "not checked") != 1 {
			t.Errorf("as the user of the programs: %+v", o)
		}
		s.run("REVOKE DELETE ON cacheaside_outbox FROM '" + s.app + "'@'%'")
		if o := s.checked(); o.code != exitFailed || !strings.Contains(o.out, "lacks DELETE on the table "+
			"cacheaside_outbox") {
			t.Errorf("without a right: %+v", o)
		}
	})
}

// TestSchemaMySQLSettings: the settings of the log are compared.
func TestSchemaMySQLSettings(t *testing.T) {
	s := onMySQLSchema(t, testenv.MariaDB.Start(t))
	s.run(s.ok(s.flags...))
	s.complete()
	s.damaged("SET GLOBAL binlog_format = 'MIXED'", "binlog_format")
	s.damaged("SET GLOBAL binlog_row_metadata = 'MINIMAL'", "binlog_row_metadata")
	s.run("SET GLOBAL binlog_row_image = 'MINIMAL'")
	s.complete() // enough for keys of the primary key
	s.flags = append(s.flags, "--full-tables", "products")
	s.damaged("", "binlog_row_image")
	if n := strings.Count(s.ok(s.flags...), "ON `products`"); n > 1 { // named by both flags
		t.Errorf("a right on products is granted %d times", n)
	}
	s.run("DROP TABLE products")
	if o := s.checked(); !strings.Contains(o.out, "products, which a Consumer should follow, does not exist") {
		t.Errorf("%+v", o)
	}
}

// TestSchemaSQLite: the printed SQL is enough on SQLite, where there are no users.
func TestSchemaSQLite(t *testing.T) {
	db, err := sqlx.Open("sqlite", filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := &withSchema{world: &world{t, nil}, db: db}
	printed := s.ok("schema", "sqlite")
	s.run(printed)
	s.run(printed)
	s.works(db, sqloutbox.SQLite, nil)
}

// TestSchemaClients: the clients of the databases execute the output as it is.
func TestSchemaClients(t *testing.T) {
	pipe := func(t *testing.T, input, program string, args ...string) {
		t.Helper()
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		c := exec.CommandContext(t.Context(), program, args...)
		c.Stdin = strings.NewReader(input)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", program, err, out)
		}
	}
	t.Run("psql", func(t *testing.T) {
		p := testenv.SharedPostgres(t)
		s := onPostgresSchema(t, p)
		pipe(t, s.ok(s.flags...), "psql", "-v", "ON_ERROR_STOP=1", p.DSN(t))
		s.complete()
	})
	t.Run("mysql", func(t *testing.T) {
		m := testenv.SharedMariaDB(t)
		s := onMySQLSchema(t, m)
		config, err := mysql.ParseDSN(m.DSN(t))
		s.check(err)
		host, port, _ := strings.Cut(config.Addr, ":")
		args := []string{"--user", config.User, "--host", host, "--port", port, "--protocol", "tcp", config.DBName}
		if config.Net == "unix" {
			args = []string{"--user", config.User, "--socket", config.Addr, config.DBName}
		}
		pipe(t, s.ok(s.flags...), "mariadb", args...)
		s.complete()
	})
}

// TestSchemaRightsAreDocumented: docs/guides/database.md lists the rights that the command grants.
func TestSchemaRightsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/guides/database.md")
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string][]string{}
	for line := range strings.Lines(string(page)) {
		if row := strings.Split(line, "|"); len(row) == 5 {
			cells[strings.TrimSpace(row[1])] = row[2:4]
		}
	}
	rows := map[string]rights{
		"`Writer` at level `Outbox`":   writerRights,
		"relay, `cacheaside outbox`":   appRights[0],
		"checkpoint of a consumer":     appRights[1],
		"parked changes":               appRights[2],
		"lock (`pglock`, `mysqllock`)": appRights[3],
		"consumer of the log":          {postgres: postgresLogRight, mysql: mysqlLogRight},
	}
	for label, want := range rows {
		row := cells[label]
		if row == nil {
			t.Errorf("there is no row %q: %q", label, slices.Collect(maps.Keys(cells)))
			continue
		}
		if !strings.Contains(row[0], "`"+want.postgres+"`") {
			t.Errorf("%s, PostgreSQL: %q, but the command grants %s", label, row[0], want.postgres)
		}
		same := want.postgres == want.mysql && strings.TrimSpace(row[1]) == "the same"
		if !same && !strings.Contains(row[1], "`"+want.mysql+"`") {
			t.Errorf("%s, MySQL: %q, but the command grants %s", label, row[1], want.mysql)
		}
	}
}

// TestSchemaJSON: --json prints the statements, and the differences.
func TestSchemaJSON(t *testing.T) {
	p := testenv.SharedPostgres(t)
	s := onPostgresSchema(t, p)
	if all := parsed[[]step](s.world, exitOK, s.flags...); len(all) < 15 || all[0].Part != partOutbox ||
		all[0].SQL == "" {
		t.Errorf("%+v", all)
	}
	if all := parsed[[]difference](s.world, exitFailed, append(s.flags, "--check")...); len(all) < 10 ||
		all[0].Problem == "" || all[0].Repair == "" {
		t.Errorf("%+v", all)
	}
}
