package entwrites

import (
	"context"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/schema"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// tables are what ent generates for the table of ormtest (migrate.Tables).
var tables = []*schema.Table{{Name: "items", PrimaryKey: []*schema.Column{{Name: "id"}}}}

var dialects = map[string]string{"sqlite": dialect.SQLite, "pgx": dialect.Postgres, "mysql": dialect.MySQL}

func openEnt(w *ormtest.World) (*Driver, error) {
	return New(entsql.OpenDB(dialects[w.DB.DriverName()], w.DB.DB), w.Writer, tables, w.Bindings)
}

// world is a World with a driver of ent.
type world struct {
	*ormtest.World
	drv *Driver
}

func start(t *testing.T, db *sqlx.DB) *world {
	t.Helper()
	w := &world{World: ormtest.Start(t, db, ormtest.Client(t, testenv.SharedRedis(t)), consistency.DefaultLevel)}
	var err error
	if w.drv, err = openEnt(w.World); err != nil {
		t.Fatal(err)
	}
	return w
}

// fresh reports an error for each cached value that differs from the database.
func (w *world) fresh(t *testing.T) {
	t.Helper()
	for _, stale := range w.Stale(context.WithoutCancel(t.Context())) {
		t.Error(stale)
	}
}

// txDriver is what the generated Tx passes to its clients.
type txDriver struct {
	dialect.ExecQuerier
	outer dialect.Driver
}

func (d txDriver) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }
func (d txDriver) Close() error                           { return nil }
func (d txDriver) Dialect() string                        { return d.outer.Dialect() }

// The functions below call the driver as the generated code does.

func id() *sqlgraph.FieldSpec { return sqlgraph.NewFieldSpec("id", field.TypeInt64) }

func createSpec(code, category string, price int64) *sqlgraph.CreateSpec {
	s := sqlgraph.NewCreateSpec("items", id())
	s.SetField("code", field.TypeString, code)
	s.SetField("category", field.TypeString, category)
	s.SetField("price", field.TypeInt64, price)
	return s
}

func create(ctx context.Context, drv dialect.Driver, code, category string, price int64) error {
	return sqlgraph.CreateNode(ctx, drv, createSpec(code, category, price))
}

func updateWhere(
	ctx context.Context, drv dialect.Driver, where func(*entsql.Selector), set func(*sqlgraph.UpdateSpec),
) error {
	s := sqlgraph.NewUpdateSpec("items", []string{"id", "code", "category", "price"}, id())
	s.Predicate = where
	set(s)
	_, err := sqlgraph.UpdateNodes(ctx, drv, s)
	return err
}

func updateOne(ctx context.Context, drv dialect.Driver, n int64, set func(*sqlgraph.UpdateSpec)) error {
	s := sqlgraph.NewUpdateSpec("items", []string{"id", "code", "category", "price"}, id())
	s.Node.ID.Value = n
	s.ScanValues = func(columns []string) ([]any, error) {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		return values, nil
	}
	s.Assign = func([]string, []any) error { return nil }
	set(s)
	return sqlgraph.UpdateNode(ctx, drv, s)
}

func deleteWhere(ctx context.Context, drv dialect.Driver, where func(*entsql.Selector)) error {
	s := sqlgraph.NewDeleteSpec("items", id())
	s.Predicate = where
	_, err := sqlgraph.DeleteNodes(ctx, drv, s)
	return err
}

func category(c string) func(*sqlgraph.UpdateSpec) {
	return func(s *sqlgraph.UpdateSpec) { s.SetField("category", field.TypeString, c) }
}

func byPrice(from int64) func(*entsql.Selector) {
	return func(s *entsql.Selector) { s.Where(entsql.Or(entsql.GTE("price", from), entsql.EQ("code", "code0"))) }
}
