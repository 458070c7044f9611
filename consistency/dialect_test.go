package consistency

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
)

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
	for dialect, own := range all {
		box, err := NewSQLOutbox(sqlx.NewDb(own.DB, "wrapped"), dialect, nil)
		if err != nil {
			t.Fatal(err)
		}
		for other, db := range all {
			_, err := NewSQLOutbox(db, dialect, nil)
			w, writerErr := NewWriter(db, cache, &Options{Queue: box, NoRelay: true})
			if writerErr == nil {
				w.Close()
			}
			for _, err := range []error{err, writerErr} {
				if (err == nil) != (dialect == other) || err != nil && !strings.Contains(err.Error(), "the dialect is that of ") {
					t.Errorf("dialect %d on a database of %d: %v", dialect, other, err)
				}
			}
		}
	}
}

// TestRefusedCommit: what PostgreSQL rolls back at the COMMIT is no unknown outcome.
func TestRefusedCommit(t *testing.T) {
	x := start(t, setup{engine: postgres})
	x.exec("CREATE TABLE child (id BIGINT REFERENCES item (id) DEFERRABLE INITIALLY DEFERRED)")
	x.exec("CREATE TABLE checked (id BIGINT)")
	x.exec("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused' USING ERRCODE = 'check_violation'; END $$")
	x.exec("CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()")
	for name, write := range map[string]func(context.Context, *sqlx.Tx) error{
		"a deferred constraint": func(ctx context.Context, tx *sqlx.Tx) error {
			x.check(set(1, "new")(ctx, tx))
			return execOn(ctx, tx, "INSERT INTO child VALUES (99)")
		},
		"a trigger with a code": func(ctx context.Context, tx *sqlx.Tx) error {
			x.check(set(1, "new")(ctx, tx))
			return execOn(ctx, tx, "INSERT INTO checked VALUES (1)")
		},
		"an error that was ignored": func(ctx context.Context, tx *sqlx.Tx) error {
			x.check(set(1, "new")(ctx, tx))
			_ = execOn(ctx, tx, "INSERT INTO item VALUES (1, 'twice')")
			return nil
		},
	} {
		x.reset()
		err := x.At(Inline).Update(t.Context(), write, x.rows.Key(1))
		if err == nil || !strings.Contains(err.Error(), "rolled back") {
			t.Errorf("%s: %v", name, err)
		}
		if got := x.counts(); got != (Stats{RolledBack: 1}) {
			t.Errorf("%s: %+v", name, got)
		}
		x.has("old")
		x.reads("old")
	}
	for state, refused := range map[string]bool{"40001": true, "40P01": true, "23503": true, "P0001": false, "40003": false, "57P01": false, "08006": false} {
		if commitRefused(&pgconn.PgError{Code: state}) != refused {
			t.Errorf("%s: refused is not %v", state, refused)
		}
	}
}
