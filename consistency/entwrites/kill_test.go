package entwrites

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() {
	ormtest.RegisterWriter(func(w *ormtest.World) (ormtest.Write, error) {
		drv, err := openEnt(w)
		return func(ctx context.Context, r *rand.Rand) error {
			switch r.IntN(4) {
			case 0:
				return inTx(ctx, drv, func(ctx context.Context, tx dialect.Driver) error {
					return errors.Join(randomWrite(ctx, tx, r), randomWrite(ctx, tx, r))
				})
			case 1:
				return Update(ctx, w.Writer, drv, func(ctx context.Context, tx dialect.Driver) error {
					return randomWrite(ctx, tx, r)
				})
			}
			return randomWrite(ctx, drv, r)
		}, err
	})
}

// randomWrite makes one write.
func randomWrite(ctx context.Context, drv dialect.Driver, r *rand.Rand) error {
	n, code, list := 1+r.Int64N(40), ormtest.RandomCode(r), ormtest.Category(r.IntN(3))
	switch r.IntN(5) {
	case 0, 1:
		return create(ctx, drv, code, list, n)
	case 2:
		return deleteWhere(ctx, drv, func(s *entsql.Selector) { s.Where(entsql.EQ("id", n)) })
	case 3:
		return updateWhere(ctx, drv, byPrice(n), func(s *sqlgraph.UpdateSpec) {
			s.AddField("price", field.TypeInt64, int64(-1))
		})
	default:
		return updateWhere(ctx, drv, func(s *entsql.Selector) { s.Where(entsql.EQ("code", code)) }, category(list))
	}
}

// TestWritersAreKilled: processes that write through ent are killed at any moment. When the Relay
// has done its work, nothing is stale.
func TestWritersAreKilled(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(t *testing.T, e testenv.Engine) { ormtest.Kill(t, e) })
}

// TestUnknownCommit: the reply to a COMMIT is lost. The rows have changed, and the Relay finds
// their keys.
func TestUnknownCommit(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		d := testenv.DatabaseOf(t, e)
		w := start(t, sqlx.NewDb(d.DB(t), d.Driver))
		lossy := entsql.OpenDB(dialects[d.Driver], ormtest.LoseCommitReplies(t, d).DB)
		drv, err := New(lossy, w.Writer, tables, w.Bindings)
		if err != nil {
			t.Fatal(err)
		}
		for name, write := range map[string]func(ctx context.Context) error{
			"alone": func(ctx context.Context) error { return updateOne(ctx, drv, 1, category("c2")) },
			"transaction": func(ctx context.Context) error {
				return inTx(ctx, drv, func(ctx context.Context, tx dialect.Driver) error {
					return updateOne(ctx, tx, 2, category("c1"))
				})
			},
		} {
			w.Read(t.Context())
			if err := write(t.Context()); err == nil {
				t.Errorf("%s: the outcome is known", name)
			}
			testenv.Eventually(t, "the transaction is committed", func() bool { return w.Depth(t) > 0 })
			w.Relay(t)
			w.fresh(t)
		}
	})
}
