package entwrites

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/shop"
)

// An interloper is a driver that calls f before the UPDATE of a transaction.
type interloper struct {
	*entsql.Driver
	f func()
}

func (i interloper) BeginTx(ctx context.Context, o *sql.TxOptions) (dialect.Tx, error) {
	tx, err := i.Driver.BeginTx(ctx, o)
	return interloperTx{tx, i.f}, err
}

type interloperTx struct {
	dialect.Tx
	f func()
}

func (i interloperTx) Exec(ctx context.Context, text string, args, v any) error {
	if strings.HasPrefix(text, "UPDATE") {
		i.f()
	}
	return i.Tx.Exec(ctx, text, args, v)
}

// Another transaction can add rows between the SELECT of the Driver and the statement. The
// statement must not change them, because their old groups would not be invalidated.
func TestRowsOfOthers(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		if db.DriverName() == "sqlite" {
			return // has one writer at a time
		}
		w := start(t, db)
		w.Read(t.Context())
		calls := 0
		inner := interloper{w.drv.Driver.(*entsql.Driver), func() {
			calls++
			if err := create(t.Context(), w.drv, "code40", "c1", 77); err != nil {
				t.Error(err)
			}
			w.Read(t.Context())
		}}
		drv, err := New(inner, w.Writer, tables, w.Bindings)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := drv.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		err = updateWhere(t.Context(), txDriver{tx, drv}, func(s *entsql.Selector) { s.Where(entsql.GTE("price", 9)) },
			category("c2"))
		if err == nil {
			err = tx.Commit()
		}
		if err != nil || calls != 1 {
			t.Fatal(calls, err)
		}
		w.fresh(t)
	})
}
