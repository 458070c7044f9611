package gormwrites

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() {
	ormtest.RegisterWriter(func(w *ormtest.World) (ormtest.Write, error) {
		plugin, err := New(w.Writer, w.Bindings, nil)
		if err != nil {
			return nil, err
		}
		db, err := openGORM(w.DB, gorm.Config{})
		if err == nil {
			err = db.Use(plugin)
		}
		return func(ctx context.Context, r *rand.Rand) error {
			db := db.WithContext(ctx)
			switch r.IntN(6) {
			case 0:
				return db.Transaction(func(tx *gorm.DB) error {
					return errors.Join(randomWrite(tx, r), randomWrite(tx, r))
				})
			case 1:
				return Update(ctx, w.Writer, db, func(tx *gorm.DB) error { return randomWrite(tx, r) })
			}
			return randomWrite(db, r)
		}, err
	})
}

// randomWrite makes one write.
func randomWrite(db *gorm.DB, r *rand.Rand) error {
	id, code, category := 1+r.Int64N(40), ormtest.RandomCode(r), ormtest.Category(r.IntN(3))
	switch r.IntN(8) {
	case 0:
		return db.Create(&item{Code: code, Category: category, Price: id}).Error
	case 1:
		row := item{ID: id, Code: code, Category: category}
		return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&row).Error
	case 2:
		return db.Delete(&item{ID: id}).Error
	case 3:
		return db.Delete(&plainItem{ID: id}).Error
	case 4:
		return db.Model(&plainItem{}).Where("price % 7 = ?", id%7).Update("price", gorm.Expr("price + 1")).Error
	case 5:
		return db.Model(&item{ID: id}).Updates(map[string]any{"code": code, "deleted_at": nil}).Error
	case 6:
		return db.Exec("UPDATE items SET category = ? WHERE id = ?", category, id).Error
	default:
		return db.Model(&item{ID: id}).Update("category", category).Error
	}
}

// TestWritersAreKilled: processes that write through GORM are killed at any moment. When the Relay
// has done its work, nothing is stale.
func TestWritersAreKilled(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(t *testing.T, e testenv.Engine) { ormtest.Kill(t, e) })
}

// TestUnknownCommit: the reply to a COMMIT is lost. The rows have changed, and the Relay finds
// their keys.
func TestUnknownCommit(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		d := testenv.DatabaseOf(t, e)
		w := start(t, sqlx.NewDb(d.DB(t), d.Driver), gorm.Config{}, nil)
		w.Read(t.Context())
		db := ormtest.LoseCommitReplies(t, d)
		g, err := openGORM(db, gorm.Config{})
		if err == nil {
			err = g.Use(w.plugin)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := g.WithContext(t.Context()).Model(&item{ID: 1}).Update("category", "c2").Error; err == nil {
			t.Error("the outcome is known")
		}
		testenv.Eventually(t, "the transaction is committed", func() bool { return w.Depth(t) > 0 })
		w.Relay(t)
		w.fresh(t)
	})
}
