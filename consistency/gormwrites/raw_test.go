package gormwrites

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/ormtest"
	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const raise = "UPDATE items SET price = price + 1 WHERE id = 1"

func TestTouches(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{}, &Options{RefuseRaw: true})
		w.Read(t.Context())
		if err := w.gorm.Exec(raise).Error; !errors.Is(err, errRaw) {
			t.Error(err)
		}
		touches := w.gorm.Scopes(Touches(w.Items.Key(1), w.Lists.GroupKey("category:c0")))
		if err := touches.Exec(raise).Error; err != nil {
			t.Fatal(err)
		}
		w.fresh(t)
		if err := w.gorm.Scopes(Touches()).Exec("DELETE FROM items WHERE id = 99").Error; err != nil {
			t.Error(err)
		}
		if s := w.plugin.Stats(); s.Raw != 3 || s.Refused != 1 || s.Whole != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Raw that changes rows needs a transaction, because its rows outlive the callback.
func TestRawQuery(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{}, nil)
		w.Read(t.Context())
		var price int64
		if err := w.gorm.Raw("WITH x AS (SELECT 1) SELECT price FROM items").Scan(&price).Error; err != nil {
			t.Error(err)
		}
		if db.DriverName() == "mysql" { // which has no UPDATE … RETURNING
			return
		}
		if err := w.gorm.Raw(raise + " RETURNING price").Scan(&price).Error; !errors.Is(err, errNoTransaction) {
			t.Error(err)
		}
		if err := w.gorm.Transaction(func(tx *gorm.DB) error {
			return tx.Raw(raise + " RETURNING price").Scan(&price).Error
		}); err != nil || price != 1 {
			t.Fatal(price, err)
		}
		w.Relay(t)
		w.fresh(t)
	})
}

// The database need not see more rows than the plugin has read.
func TestManyRows(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{CreateBatchSize: 200}, nil)
		rows := make([]plainItem, 1001)
		for i := range rows {
			rows[i] = plainItem{Code: ormtest.Code(1000 + i), Category: "c1"}
		}
		if err := w.gorm.Create(rows).Error; err != nil {
			t.Fatal(err)
		}
		w.Relay(t)
		w.Read(t.Context())
		if err := w.gorm.Model(&plainItem{}).Where("id > 5").Update("price", 3).Error; err != nil {
			t.Fatal(err)
		}
		if s := w.plugin.Stats(); s.Whole != 1 {
			t.Errorf("%+v", s)
		}
		w.fresh(t)
	})
}

// The filter of a loader would hide a row whose key is not known.
func TestFilters(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{}, nil)
		filtered, err := cacheaside.NewLoader(w.Cache, "filtered", func(context.Context, int64) (string, error) {
			return "", cacheaside.ErrNotFound
		}, &cacheaside.LoaderOptions{Filter: allFilter{}})
		if err != nil {
			t.Fatal(err)
		}
		bindings := append(w.Bindings, canal.Bind(filtered, "shop", "items", canal.IntColumn[int64]("id")))
		plugin, err := New(w.Writer, bindings, nil)
		if err != nil {
			t.Fatal(err)
		}
		g, err := openGORM(db, gorm.Config{})
		if err == nil {
			err = g.Use(plugin)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Exec(raise).Error; err == nil || !strings.Contains(err.Error(), "filter of loader filtered") {
			t.Error(err)
		}
		if err := g.Create(&item{Code: "code20"}).Error; err != nil {
			t.Error(err)
		}
		if err := g.Model(&item{ID: 1}).Update("id", 80).Error; err == nil {
			t.Error("a row got a key that is not known")
		}
		if err := g.Scopes(Touches(filtered.Key(1))).Exec(raise).Error; err != nil {
			t.Error(err)
		}
	})
}

// Redis is not needed for a write: the Relay invalidates the keys when it is back.
func TestRedisIsDown(t *testing.T) {
	server := testenv.StartRedis(t)
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := startOn(t, db, ormtest.Client(t, server), gorm.Config{}, nil)
		w.Read(t.Context())
		server.Pause()
		defer server.Resume()
		if err := w.gorm.Model(&item{ID: 1}).Update("category", "c2").Error; err != nil {
			t.Error(err)
		}
		if w.Depth(t) == 0 {
			t.Error("nothing in the outbox")
		}
		server.Resume()
		w.Relay(t)
		w.fresh(t)
	})
}

// allFilter contains all keys.
type allFilter struct{ cacheaside.Filter }

func (allFilter) MightContain(context.Context, string) (bool, error) { return true, nil }

func (allFilter) Inserting(context.Context, []string) (func(context.Context) error, error) {
	return nil, nil
}
