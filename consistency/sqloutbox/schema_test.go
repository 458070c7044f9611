package sqloutbox

import (
	"os"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
)

// Tables as they were made before they had namespaces.
var oldSchemas = map[Dialect][]string{
	MySQL: {`CREATE TABLE cacheaside_outbox (id BINARY(16) NOT NULL, due BIGINT NOT NULL, created BIGINT NOT NULL, claim BIGINT NOT NULL DEFAULT 0, was_due BIGINT NOT NULL DEFAULT 0,
		loader VARBINARY(255) NOT NULL, version VARBINARY(255) NOT NULL, text BLOB NOT NULL, all_keys TINYINT NOT NULL, again BIGINT NOT NULL, reload TINYINT NOT NULL, attempts INT NOT NULL,
		PRIMARY KEY (id), KEY due (due, created)) ENGINE=InnoDB ROW_FORMAT=DYNAMIC`},
	SQLite: {`CREATE TABLE cacheaside_outbox (id BLOB NOT NULL CHECK (length(id) = 16), due INTEGER NOT NULL, created INTEGER NOT NULL, claim INTEGER NOT NULL DEFAULT 0, was_due INTEGER NOT NULL DEFAULT 0,
		loader BLOB NOT NULL CHECK (length(loader) <= 255), version BLOB NOT NULL CHECK (length(version) <= 255), text BLOB NOT NULL CHECK (length(text) <= 65535), all_keys INTEGER NOT NULL, again INTEGER NOT NULL,
		reload INTEGER NOT NULL, attempts INTEGER NOT NULL, PRIMARY KEY (id)) STRICT, WITHOUT ROWID`,
		"CREATE INDEX cacheaside_outbox_due ON cacheaside_outbox (due, created)"},
}

const oldInsert = "INSERT INTO cacheaside_outbox (id, due, created, loader, version, text, all_keys, again, reload, " +
	"attempts) VALUES (x'%', 1, 1, x'75736572', x'31', x'6f6c64', 0, 0, 0, 0)"

// migration returns the statements of docs/migration.md that follow this mark.
func (t *outboxTest) migration(mark string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/migration.md")
	t.check(err)
	_, after, ok := strings.Cut(string(page), "<!-- ../consistency/sqloutbox/schema_test.go: "+mark+" -->\n```sql\n")
	if !ok {
		t.Fatalf("docs/migration.md has no %q", mark)
	}
	text, _, _ := strings.Cut(after, "```")
	return strings.Split(strings.TrimRight(strings.TrimSpace(text), ";"), ";\n")
}

// TestOldTables: docs/migration.md makes a table of before one of today, and keeps its rows.
func TestOldTables(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		if t.text.dialect == Postgres {
			return // no release has made others
		}
		run := func(statements ...string) {
			t.Helper()
			for _, s := range statements {
				t.exec(t.db, s)
			}
		}
		old := func() { run(strings.Replace(oldInsert, "%", consistency.NewID(), 1)) }
		run("DROP TABLE cacheaside_outbox")
		run(oldSchemas[t.text.dialect]...)
		old()
		if err := t.Put(t.ctx(), textItem("new")); err == nil || !strings.Contains(err.Error(), "Schema") {
			t.Errorf("put into a table of before: %v", err)
		}
		if t.text.dialect != MySQL {
			run(t.migration("sqlite")...)
			t.check(t.CreateTable(t.ctx()))
			run(t.migration("sqlite, then")...)
		} else {
			run(t.migration("mysql")...)
			old()
			run(t.migration("mysql, then")...)
		}
		t.check(t.Put(t.ctx(), textItem("new")))
		want := []string{"new", "old"}
		if t.server != nil {
			want = append(want, "old")
		}
		got := t.some(t.Outbox, 10)
		t.same(got, want...)
		t.check(t.Done(t.ctx(), got...))
		t.holds(0, "done")
	})
}

// TestOldKey: in a table whose primary key is the ID alone, no item of another namespace is lost in
// silence, and docs/migration.md gives it the new key.
func TestOldKey(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		t.exec(t.db, "DROP TABLE cacheaside_outbox")
		for s := range strings.SplitSeq(strings.TrimRight(strings.TrimSpace(t.text.schema()), ";"), ";\n") {
			t.exec(t.db, strings.NewReplacer("PRIMARY KEY (namespace, id)", "PRIMARY KEY (id)",
				"PRIMARY KEY (id, namespace)", "PRIMARY KEY (id)").Replace(s))
		}
		crm, err := New(t.db, t.text.dialect, &Options{Namespace: "crm"})
		t.check(err)
		item := textItem("a")
		item.ID = consistency.NewID()
		refused := func(err error, does string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(),
				"the table cacheaside_outbox was created by an older release") || !strings.Contains(err.Error(), does) {
				t.Errorf("put into a table with another key: %v", err)
			}
		}
		if t.text.dialect == Postgres {
			if err := t.Put(t.ctx(), item); err == nil ||
				!strings.Contains(err.Error(), "the wrong key (see Dialect.Schema)") {
				t.Errorf("put into a table with another key: %v", err)
			}
			return
		}
		if t.text.dialect == SQLite {
			refused(t.Put(t.ctx(), item), "copy it into a new one (see docs/migration.md)")
			return
		}
		const alter = "ALTER TABLE `cacheaside_outbox` DROP PRIMARY KEY, ADD PRIMARY KEY (namespace, id)"
		t.check(t.Put(t.ctx(), item))
		t.check(t.Put(t.ctx(), item, textItem("b"))) // again
		refused(crm.Put(t.ctx(), textItem("c"), item), alter)
		tx := t.begin(t.db)
		refused(crm.PutIn(t.ctx(), tx, item), alter)
		t.check(tx.Rollback())
		t.check(crm.Later(t.ctx(), item))
		t.check(crm.Done(t.ctx(), item))
		t.holds(2, "others' items")
		t.exec(t.db, alter)
		t.check(crm.Put(t.ctx(), item))
		t.holds(2, "others' items")
		t.same(t.some(crm, 10), "a")
		for _, s := range t.migration("mysql, key") {
			if s != strings.ReplaceAll(alter, "`", "") {
				t.Errorf("docs/migration.md says %q", s)
			}
		}
	})
}

// TestIndexOfAnotherTable: CreateTable notices that the name of its index is taken.
func TestIndexOfAnotherTable(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		if t.text.dialect == MySQL {
			return // the names of its indexes belong to their tables
		}
		t.exec(t.db, "DROP TABLE cacheaside_outbox")
		t.exec(t.db, "CREATE TABLE another (namespace INTEGER)")
		t.exec(t.db, "CREATE INDEX cacheaside_outbox_due ON another (namespace)")
		if err := t.CreateTable(t.ctx()); err == nil ||
			!strings.Contains(err.Error(), "the index cacheaside_outbox_due belongs to another table") {
			t.Errorf("the name of the index is taken: %v", err)
		}
		t.exec(t.db, "DROP TABLE another")
		t.check(t.CreateTable(t.ctx()))
	})
}

// TestDialectFits: an outbox is refused whose dialect is not that of the database, and a Writer of
// another database than its outbox. Nothing is connected to.
func TestDialectFits(t *testing.T) {
	open := func(driver, dsn string) *sqlx.DB {
		db, err := sqlx.Open(driver, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	all := map[Dialect]*sqlx.DB{
		MySQL:    open("mysql", "nobody@tcp(127.0.0.1:1)/none"),
		Postgres: open("pgx", "postgres://nobody@127.0.0.1:1/none"),
		SQLite:   sqlx.NewDb(sqlite.Open(t), "sqlite"),
	}
	cache, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	for dialect, right := range all {
		box, err := New(sqlx.NewDb(right.DB, "wrapped"), dialect, nil)
		if err != nil {
			t.Fatal(err)
		}
		for other, db := range all {
			_, err := New(db, dialect, nil)
			w, writerErr := consistency.NewWriter(db, cache, &consistency.Options{Queue: box, NoRelay: true})
			if writerErr == nil {
				w.Close()
			}
			for _, err := range []error{err, writerErr} {
				if (err == nil) != (dialect == other) || err != nil &&
					!strings.Contains(err.Error(), "the dialect is that of ") {
					t.Errorf("dialect %d on a database of %d: %v", dialect, other, err)
				}
			}
		}
	}
}
