package entwrites

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A write is one that a program makes through ent.
type write struct {
	name  string
	whole bool // it invalidates loaders as a whole
	do    func(ctx context.Context, drv dialect.Driver) error
}

// writes are the kinds of writes of ent. Items 1 to 10 exist, with the codes 0 to 9.
var writes = []write{
	{name: "create", do: func(ctx context.Context, drv dialect.Driver) error {
		return create(ctx, drv, "code20", "c1", 7)
	}},
	{name: "create with a key", do: func(ctx context.Context, drv dialect.Driver) error {
		s := createSpec("code20", "c1", 7)
		s.ID.Value = int64(50)
		return sqlgraph.CreateNode(ctx, drv, s)
	}},
	{name: "create bulk", do: func(ctx context.Context, drv dialect.Driver) error {
		return sqlgraph.BatchCreate(ctx, drv, &sqlgraph.BatchCreateSpec{Nodes: []*sqlgraph.CreateSpec{
			createSpec("code20", "c1", 7), createSpec("code21", "c2", 8), createSpec("code22", "c2", 9)}})
	}},
	{name: "upsert", whole: true, do: func(ctx context.Context, drv dialect.Driver) error {
		s := createSpec("code1", "c2", 7)
		s.OnConflict = []entsql.ConflictOption{entsql.ConflictColumns("code"), entsql.ResolveWithNewValues(),
			entsql.ResolveWith(func(u *entsql.UpdateSet) { u.SetIgnore("id") })}
		return sqlgraph.CreateNode(ctx, drv, s)
	}},
	{name: "update one", do: func(ctx context.Context, drv dialect.Driver) error {
		return updateOne(ctx, drv, 1, category("c2"))
	}},
	{name: "update", do: func(ctx context.Context, drv dialect.Driver) error {
		return updateWhere(ctx, drv, byPrice(7), category("c2"))
	}},
	{name: "add", do: func(ctx context.Context, drv dialect.Driver) error {
		return updateWhere(ctx, drv, byPrice(5), func(s *sqlgraph.UpdateSpec) {
			s.AddField("price", field.TypeInt64, int64(3))
			s.SetField("category", field.TypeString, "c0")
		})
	}},
	{name: "update of the key", whole: true, do: func(ctx context.Context, drv dialect.Driver) error {
		return updateWhere(ctx, drv, byPrice(9), func(s *sqlgraph.UpdateSpec) {
			s.AddField("id", field.TypeInt64, int64(50))
		})
	}},
	{name: "update of all", do: func(ctx context.Context, drv dialect.Driver) error {
		return updateWhere(ctx, drv, nil, category("c2"))
	}},
	{name: "delete", do: func(ctx context.Context, drv dialect.Driver) error {
		return deleteWhere(ctx, drv, byPrice(6))
	}},
	{name: "delete all", do: func(ctx context.Context, drv dialect.Driver) error {
		return deleteWhere(ctx, drv, nil)
	}},
	{name: "exec", do: func(ctx context.Context, drv dialect.Driver) error {
		_, err := drv.(interface {
			ExecContext(context.Context, string, ...any) (sql.Result, error)
		}).ExecContext(ctx, "UPDATE items SET category = 'c2' WHERE price > 7")
		return err
	}},
	{name: "exec of an unknown form", whole: true, do: func(ctx context.Context, drv dialect.Driver) error {
		return drv.Exec(ctx, "/* nightly */ UPDATE items SET category = 'c2' WHERE price > 7", []any{}, nil)
	}},
}

// TestWrites makes each kind of write by itself, in a transaction of the program, and in Update.
// After it, no cached value differs from the database.
func TestWrites(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db)
		modes := map[string]func(ctx context.Context, do func(context.Context, dialect.Driver) error) error{
			"alone": func(ctx context.Context, do func(context.Context, dialect.Driver) error) error {
				return do(ctx, w.drv)
			},
			"transaction": func(ctx context.Context, do func(context.Context, dialect.Driver) error) error {
				return inTx(ctx, w.drv, do)
			},
			"update": func(ctx context.Context, do func(context.Context, dialect.Driver) error) error {
				return Update(ctx, w.Writer, w.drv, do)
			},
		}
		for mode, run := range modes {
			for _, c := range writes {
				if c.name == "exec" && mode == "transaction" {
					continue // the generated code reaches the driver's transaction
				}
				t.Run(mode+"/"+c.name, func(t *testing.T) {
					w.Reset(t)
					before := w.drv.Stats()
					if err := run(t.Context(), c.do); err != nil {
						t.Fatal(err)
					}
					w.fresh(t)
					if whole := w.drv.Stats().Whole - before.Whole; (whole > 0) != c.whole {
						t.Errorf("whole loaders: %d", whole)
					}
				})
			}
		}
	})
}

func inTx(ctx context.Context, drv *Driver, do func(context.Context, dialect.Driver) error) error {
	tx, err := drv.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(ctx, txDriver{tx, drv}); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

var errIntended = errors.New("intended")

// A transaction that is rolled back leaves no keys, and a statement that fails neither.
func TestRollback(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db)
		w.Read(t.Context())
		if err := inTx(t.Context(), w.drv, func(ctx context.Context, drv dialect.Driver) error {
			return errors.Join(updateOne(ctx, drv, 1, category("c2")), errIntended)
		}); !errors.Is(err, errIntended) {
			t.Error(err)
		}
		if err := create(t.Context(), w.drv, "code1", "c2", 1); err == nil {
			t.Error("a duplicate was created")
		}
		if n := w.Depth(t); n > 0 {
			t.Errorf("%d items in the outbox", n)
		}
		w.fresh(t)
	})
}

// What is rolled back to a savepoint leaves no keys. The rest of the transaction does.
func TestSavepoint(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db)
		w.Reset(t)
		err := inTx(t.Context(), w.drv, func(ctx context.Context, drv dialect.Driver) error {
			return errors.Join(
				updateOne(ctx, drv, 1, category("c2")),
				drv.Exec(ctx, "SAVEPOINT inner_tx", []any{}, nil),
				updateOne(ctx, drv, 2, category("c2")),
				drv.Exec(ctx, "ROLLBACK TO SAVEPOINT inner_tx", []any{}, nil))
		})
		if err != nil {
			t.Fatal(err)
		}
		var changed []int64
		err = db.Select(&changed, "SELECT id FROM items WHERE id IN (1, 2) AND category = 'c2'")
		if err != nil || !slices.Equal(changed, []int64{1}) {
			t.Errorf("%d, %v", changed, err)
		}
		w.fresh(t)
		if s := w.drv.Stats(); s.Statements != 2 || s.Whole != 0 || s.Raw != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// In Update, a transaction of the client is part of the Update, so its Rollback does nothing.
func TestTransactionInUpdate(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db)
		w.Reset(t)
		err := Update(t.Context(), w.Writer, w.drv, func(ctx context.Context, drv dialect.Driver) error {
			tx, err := drv.Tx(ctx)
			if err != nil {
				return err
			}
			return errors.Join(updateOne(ctx, txDriver{tx, drv}, 1, category("c2")), tx.Rollback())
		})
		if err != nil {
			t.Fatal(err)
		}
		var category string
		if err := db.Get(&category, "SELECT category FROM items WHERE id = 1"); err != nil || category != "c2" {
			t.Errorf("%q, %v", category, err)
		}
		w.fresh(t)
	})
}

// The keys that Touches names take the place of whole loaders.
func TestTouches(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db)
		w.Read(t.Context())
		ctx := Touches(t.Context(), w.Items.Key(1), w.Lists.GroupKey("category:c0"))
		if err := w.drv.Exec(ctx, "/* x */ UPDATE items SET price = 8 WHERE id = 1", []any{}, nil); err != nil {
			t.Fatal(err)
		}
		w.fresh(t)
		if s := w.drv.Stats(); s.Raw != 1 || s.Whole != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Redis is not needed for a write: the Relay invalidates the keys when it is back.
func TestRedisIsDown(t *testing.T) {
	server := testenv.StartRedis(t)
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := &world{World: ormtest.Start(t, db, ormtest.Client(t, server), 0)}
		var err error
		if w.drv, err = openEnt(w.World); err != nil {
			t.Fatal(err)
		}
		w.Read(t.Context())
		server.Pause()
		defer server.Resume()
		if err := updateOne(t.Context(), w.drv, 1, category("c2")); err != nil {
			t.Error(err)
		}
		server.Resume()
		w.Relay(t)
		w.fresh(t)
	})
}

// What is not of the simple form is not taken apart.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"UPDATE `items` SET `a` = ? WHERE `b` = ? AND `c` IN (SELECT `x` FROM `y` WHERE `z` = ?)": "UPDATE items 1",
		`UPDATE "shop"."items" SET "a" = $1`:                                                      "UPDATE shop.items 0",
		`DELETE FROM "items" WHERE "where" = 'a WHERE b'`:                                         "DELETE items 0",
		"INSERT INTO `items` (`a`, `b`) VALUES (?, ?), (?, ?)":                                    "INSERT items 0",
		"UPDATE a, b SET a.x = 1":                                                                 "0",
		"UPDATE a AS b SET x = 1":                                                                 "0",
		"UPDATE a SET x = 1 FROM b WHERE a.id = b.id":                                             "0",
		"DELETE FROM a USING b WHERE a.id = b.id":                                                 "0",
		"UPDATE a SET x = 1 WHERE y = 2 RETURNING id":                                             "0",
		"UPDATE a SET x = 1 -- WHERE\nWHERE y = 2":                                                "0",
		`UPDATE a SET x = 'it\'s' WHERE y = 2`:                                                    "0",
		"INSERT INTO a (x) VALUES (?) ON DUPLICATE KEY UPDATE x = VALUES(x)":                      "INSERT a 0",
		"INSERT INTO a (x) SELECT y FROM b":                                                       "0",
		"TRUNCATE a":                                                                              "0",
	} {
		q := parse(text, nil)
		if q.verb == "" {
			q.table = ""
		}
		if got := strings.TrimSpace(fmt.Sprint(q.verb, " ", q.table, " ", q.skip)); got != strings.TrimSpace(want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}
