//go:build accept

package entwrites

import (
	"context"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestCostOfAWrite measures an UPDATE of one row by its key, in runs that take turns. ent reads the
// row after it.
func TestCostOfAWrite(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, e testenv.Engine) {
		d := testenv.Durable(t, e)
		w := start(t, sqlx.NewDb(d.DB(t), d.Driver))
		n := int64(0)
		update := func(ctx context.Context, drv dialect.Driver) error {
			n++
			return updateOne(ctx, drv, 1, func(s *sqlgraph.UpdateSpec) { s.SetField("price", field.TypeInt64, n) })
		}
		bare := entsql.OpenDB(dialects[d.Driver], w.DB.DB)
		ormtest.Cost(t,
			ormtest.Way{Name: "ent alone", Do: func() error { return update(t.Context(), bare) }},
			ormtest.Way{Name: "ent with the driver", Do: func() error { return update(t.Context(), w.drv) }},
			ormtest.Way{Name: "entwrites.Update", Do: func() error {
				return Update(t.Context(), w.Writer, w.drv, update)
			}},
			w.ByHand(t.Context()))
	})
}
