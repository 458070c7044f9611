//go:build accept

package gormwrites

import (
	"testing"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"

	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestCostOfAWrite measures an UPDATE of one row by its key, in runs that take turns.
func TestCostOfAWrite(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, e testenv.Engine) {
		d := testenv.Durable(t, e)
		w := start(t, sqlx.NewDb(d.DB(t), d.Driver), gorm.Config{}, nil)
		bare, err := openGORM(w.DB, gorm.Config{})
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		update := func(db *gorm.DB) error {
			n++
			return db.WithContext(t.Context()).Model(&item{ID: 1}).Update("price", n).Error
		}
		ormtest.Cost(t,
			ormtest.Way{Name: "GORM alone", Do: func() error { return update(bare) }},
			ormtest.Way{Name: "GORM with the plugin", Do: func() error { return update(w.gorm) }},
			ormtest.Way{Name: "gormwrites.Update", Do: func() error {
				return Update(t.Context(), w.Writer, w.gorm, update)
			}},
			w.ByHand(t.Context()))
	})
}
