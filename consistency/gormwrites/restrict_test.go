package gormwrites

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/cacheaside/cacheaside/internal/test/shop"
)

// An interloper is a value whose nth use in a statement calls f. GORM uses it when it builds the
// statement: first in the dry run of the plugin, and then after the plugin has read the rows.
type interloper struct {
	uses *int
	f    func()
}

func (i interloper) GormValue(context.Context, *gorm.DB) clause.Expr {
	if *i.uses++; *i.uses == 2 {
		i.f()
	}
	return clause.Expr{SQL: "?", Vars: []any{50}}
}

// Another transaction can add rows between the plugin's SELECT and the statement. The statement
// must not change them, because their old groups would not be invalidated.
func TestRowsOfOthers(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		if db.DriverName() == "sqlite" {
			return // has one writer at a time
		}
		w := start(t, db, gorm.Config{}, nil)
		w.Read(t.Context())
		uses := 0
		price := interloper{&uses, func() {
			if err := w.gorm.Create(&item{Code: "code40", Category: "c1", Price: 77}).Error; err != nil {
				t.Error(err)
			}
			w.Read(t.Context())
		}}
		if err := w.gorm.Transaction(func(tx *gorm.DB) error {
			return tx.Model(&item{}).Where("price >= 9").Updates(map[string]any{"category": "c2", "price": price}).Error
		}, &sql.TxOptions{Isolation: sql.LevelReadCommitted}); err != nil {
			t.Fatal(err)
		}
		if uses < 2 {
			t.Error("nothing has come between")
		}
		w.Relay(t)
		w.fresh(t)
	})
}
