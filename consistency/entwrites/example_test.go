package entwrites_test

import (
	"context"
	"database/sql"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/schema"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/entwrites"
)

// service is what a program has before it uses the driver.
type service struct {
	db       *sql.DB
	w        *consistency.Writer // with an outbox
	products *cacheaside.Loader[int64, string]
	lists    *cacheaside.Loader[string, string] // by category, in a group of the category
	tables   []*schema.Table                    // the generated migrate.Tables
}

// Bind each loader to its table, and pass the driver to the generated client. Then no write names
// keys.
func ExampleNew() {
	open := func(s *service) (*entwrites.Driver, error) {
		return entwrites.New(entsql.OpenDB(dialect.Postgres, s.db), s.w, s.tables, []canal.Binding{
			canal.Bind(s.products, "public", "products", canal.IntColumn[int64]("id")),
			canal.BindGroup(s.lists, "public", "products", canal.Text("category", "category:%s"), "cents"),
		}) // and then: client := ent.NewClient(ent.Driver(drv))
	}
	fmt.Println(open != nil)
	// Output: true
}

// A transaction at the level of the Writer.
func ExampleUpdate() {
	replace := func(ctx context.Context, s *service, drv *entwrites.Driver) error {
		return entwrites.Update(ctx, s.w, drv, func(ctx context.Context, tx dialect.Driver) error {
			// client := ent.NewClient(ent.Driver(tx)), and then its writes
			return tx.Exec(ctx, "DELETE FROM products WHERE id = 1", []any{}, nil)
		})
	}
	fmt.Println(replace != nil)
	// Output: true
}

// SQL of a form that ent does not write: the caller names the keys.
func ExampleTouches() {
	sell := func(ctx context.Context, s *service, drv *entwrites.Driver, id int64) error {
		_, err := drv.ExecContext(entwrites.Touches(ctx, s.products.Key(id)), "CALL sell($1)", id)
		return err
	}
	fmt.Println(sell != nil)
	// Output: true
}
