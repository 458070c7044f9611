//go:build accept

package gormwrites

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"

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
		ways := []struct {
			name string
			do   func() error
		}{
			{"GORM alone", func() error { return update(bare) }},
			{"GORM with the plugin", func() error { return update(w.gorm) }},
			{"gormwrites.Update", func() error { return Update(t.Context(), w.Writer, w.gorm, update) }},
			{"Writer.Update with three keys by hand", func() error {
				return w.Writer.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
					n++
					_, err := tx.ExecContext(ctx, tx.Rebind("UPDATE items SET price = ? WHERE id = 1"), n)
					return err
				}, w.Items.Key(1), w.Codes.Key("code0"), w.Lists.GroupKey("category:c0"))
			}},
		}
		const runs, writes = 9, 200
		took := make([][]time.Duration, len(ways))
		for range runs {
			for i, way := range ways {
				began := time.Now()
				for range writes {
					if err := way.do(); err != nil {
						t.Fatal(err)
					}
				}
				took[i] = append(took[i], time.Since(began)/writes)
			}
		}
		for i, way := range ways {
			slices.Sort(took[i])
			t.Logf("%-38s %v a write, median of %d runs", way.name, took[i][runs/2].Round(time.Microsecond), runs)
		}
	})
}
