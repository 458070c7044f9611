package gormwrites

import (
	"errors"
	"slices"
	"testing"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A write is one that a program makes through GORM.
type write struct {
	name  string
	whole bool // it invalidates loaders as a whole
	later bool // GORM makes a transaction of several writes, whose keys the Relay invalidates
	do    func(db *gorm.DB) error
}

// writes are the kinds of writes of GORM. Items 1 to 10 exist, with the codes 0 to 9.
var writes = []write{
	{name: "create", do: func(db *gorm.DB) error {
		return db.Create(&item{Code: "code20", Category: "c1", Price: 7}).Error
	}},
	{name: "create batch", do: func(db *gorm.DB) error {
		return db.Create([]*item{{Code: "code20", Category: "c1"}, {Code: "code21", Category: "c2"},
			{Code: "code22", Category: "c2"}}).Error
	}},
	{name: "create in batches", later: true, do: func(db *gorm.DB) error {
		return db.CreateInBatches([]item{{Code: "code20", Category: "c1"}, {Code: "code21", Category: "c2"},
			{Code: "code22", Category: "c0"}}, 2).Error
	}},
	{name: "create with a key", do: func(db *gorm.DB) error {
		return db.Create(&item{ID: 50, Code: "code20", Category: "c1"}).Error
	}},
	{name: "create from a map", do: func(db *gorm.DB) error {
		return db.Model(&item{}).Create(map[string]any{"id": 51, "code": "code20", "category": "c1", "price": 1}).Error
	}},
	{name: "create from a map without a key", do: func(db *gorm.DB) error {
		return db.Model(&item{}).Create(map[string]any{"code": "code20", "category": "c1", "price": 1}).Error
	}},
	{name: "update", do: func(db *gorm.DB) error {
		return db.Model(&item{ID: 1}).Update("price", 100).Error
	}},
	{name: "update moves", do: func(db *gorm.DB) error {
		return db.Model(&item{}).Where("id = ?", 1).Update("category", "c2").Error
	}},
	{name: "updates of a struct", do: func(db *gorm.DB) error {
		return db.Model(&item{ID: 1}).Updates(item{Code: "code30", Category: "c1"}).Error
	}},
	{name: "updates of a map", do: func(db *gorm.DB) error {
		return db.Model(&item{ID: 1}).Updates(map[string]any{"code": "code30", "category": "c1"}).Error
	}},
	{name: "update by an expression", do: func(db *gorm.DB) error {
		return db.Model(&item{}).Where("id < 4").Updates(map[string]any{
			"code": gorm.Expr("REPLACE(code, 'code', 'code1')"), "price": gorm.Expr("price + 1")}).Error
	}},
	{name: "update without the key", do: func(db *gorm.DB) error {
		return db.Model(&item{}).Where("category = ? OR price = ?", "c1", 0).Or("price = 3").
			Update("category", "c2").Error
	}},
	{name: "update of the key", whole: true, do: func(db *gorm.DB) error {
		return db.Model(&item{ID: 1}).Update("id", 60).Error
	}},
	{name: "update column", do: func(db *gorm.DB) error {
		return db.Model(&item{ID: 1}).UpdateColumn("price", 100).Error
	}},
	{name: "update of nothing", do: func(db *gorm.DB) error {
		return db.Model(&item{ID: 99}).Update("price", 100).Error
	}},
	{name: "update of all", do: func(db *gorm.DB) error {
		return db.Session(&gorm.Session{AllowGlobalUpdate: true}).Model(&item{}).Update("category", "c0").Error
	}},
	{name: "update by a table", whole: true, do: func(db *gorm.DB) error {
		return db.Table("items").Where("id = 1").Update("price", 100).Error
	}},
	{name: "update by an alias", whole: true, do: func(db *gorm.DB) error {
		return db.Table("items AS i").Where("id = 1").Updates(map[string]any{"price": 100}).Error
	}},
	{name: "save", do: func(db *gorm.DB) error {
		return db.Save(&item{ID: 1, Code: "code30", Category: "c1", Price: 5}).Error
	}},
	{name: "save a new row", do: func(db *gorm.DB) error {
		return db.Save(&item{Code: "code30", Category: "c1", Price: 5}).Error
	}},
	{name: "save a new row with a key", whole: true, do: func(db *gorm.DB) error {
		return db.Save(&item{ID: 60, Code: "code30", Category: "c1", Price: 5}).Error
	}},
	{name: "save a slice", do: func(db *gorm.DB) error {
		return db.Save([]item{{ID: 1, Code: "code30", Category: "c1"}, {ID: 2, Code: "code31", Category: "c0"}}).Error
	}},
	{name: "first or create", do: func(db *gorm.DB) error {
		return db.Where(item{Code: "code33"}).Attrs(item{Category: "c1"}).FirstOrCreate(&item{}).Error
	}},
	{name: "soft delete", do: func(db *gorm.DB) error { return db.Delete(&item{ID: 1}).Error }},
	{name: "soft delete by a condition", do: func(db *gorm.DB) error {
		return db.Where("category = ?", "c1").Delete(&item{}).Error
	}},
	{name: "unscoped delete", do: func(db *gorm.DB) error { return db.Unscoped().Delete(&item{ID: 1}).Error }},
	{name: "delete", do: func(db *gorm.DB) error { return db.Delete(&plainItem{}, []int{1, 2, 3}).Error }},
	{name: "delete by a condition", do: func(db *gorm.DB) error {
		return db.Where("price > 4").Delete(&plainItem{}).Error
	}},
	{name: "exec", whole: true, do: func(db *gorm.DB) error {
		return db.Exec("UPDATE items SET category = ? WHERE id = 1", "c2").Error
	}},
	{name: "exec without a change", do: func(db *gorm.DB) error {
		return db.Exec("SELECT 1").Error
	}},
}

// TestWrites makes each kind of write by itself, in a transaction of the program, and in Update.
// After it, no cached value differs from the database.
func TestWrites(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{}, nil)
		modes := map[string]func(t *testing.T, do func(*gorm.DB) error) error{
			"alone": func(_ *testing.T, do func(*gorm.DB) error) error { return do(w.gorm) },
			"transaction": func(t *testing.T, do func(*gorm.DB) error) error {
				defer w.Relay(t)
				return w.gorm.Transaction(do)
			},
			"update": func(t *testing.T, do func(*gorm.DB) error) error {
				return Update(t.Context(), w.Writer, w.gorm, do)
			},
		}
		for mode, run := range modes {
			if mode != "alone" && db.DriverName() != "sqlite" && !testenv.Accepting {
				continue
			}
			for _, c := range writes {
				t.Run(mode+"/"+c.name, func(t *testing.T) {
					w.Reset(t)
					before := w.plugin.Stats()
					if err := run(t, c.do); err != nil {
						t.Fatal(err)
					}
					if c.later {
						w.Relay(t)
					}
					w.fresh(t)
					if whole := w.plugin.Stats().Whole - before.Whole; (whole > 0) != c.whole {
						t.Errorf("whole loaders: %d", whole)
					}
				})
			}
		}
	})
}

var errIntended = errors.New("intended")

// A transaction that is rolled back leaves no keys, and one that fails neither.
func TestRollback(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{}, nil)
		err := w.gorm.Transaction(func(tx *gorm.DB) error {
			return errors.Join(tx.Model(&item{ID: 1}).Update("category", "c2").Error, errIntended)
		})
		if !errors.Is(err, errIntended) {
			t.Fatal(err)
		}
		if err := w.gorm.Create(&item{Code: "code1"}).Error; err == nil {
			t.Error("a duplicate was created")
		}
		if err := Update(t.Context(), w.Writer, w.gorm, func(tx *gorm.DB) error {
			return errors.Join(tx.Delete(&item{ID: 1}).Error, errIntended)
		}); !errors.Is(err, errIntended) {
			t.Error(err)
		}
		if n := w.Depth(t); n > 0 {
			t.Errorf("%d items in the outbox", n)
		}
		w.fresh(t)
	})
}

// A nested transaction that is rolled back does not take the keys of the outer one with it.
func TestNestedTransaction(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		for _, prepared := range []bool{false, true} {
			t.Run(map[bool]string{true: "prepared", false: "plain"}[prepared], func(t *testing.T) {
				w := start(t, emptied(t, db), gorm.Config{PrepareStmt: prepared}, nil)
				w.Read(t.Context())
				err := w.gorm.Transaction(func(tx *gorm.DB) error {
					if err := tx.Model(&item{ID: 1}).Update("category", "c2").Error; err != nil {
						return err
					}
					if err := tx.Transaction(func(tx *gorm.DB) error {
						return errors.Join(tx.Delete(&item{ID: 2}).Error, errIntended)
					}); !errors.Is(err, errIntended) {
						return err
					}
					return tx.Transaction(func(tx *gorm.DB) error { return tx.Delete(&item{ID: 3}).Error })
				})
				if err != nil {
					t.Fatal(err)
				}
				if w.Depth(t) == 0 {
					t.Error("no items in the outbox")
				}
				w.Relay(t)
				w.fresh(t)
			})
		}
	})
}

// emptied empties the database, so that another world can be made in it.
func emptied(t *testing.T, db *sqlx.DB) *sqlx.DB {
	t.Helper()
	for _, table := range []string{"items", "cacheaside_outbox"} {
		if _, err := db.Exec("DROP TABLE IF EXISTS " + table); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// Without GORM's default transaction the plugin begins one.
func TestSkipDefaultTransaction(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{SkipDefaultTransaction: true, PrepareStmt: true}, nil)
		for _, c := range writes[:8] {
			t.Run(c.name, func(t *testing.T) {
				w.Reset(t)
				if err := c.do(w.gorm); err != nil {
					t.Fatal(err)
				}
				if c.later {
					w.Relay(t)
				}
				w.fresh(t)
			})
		}
	})
}

// A conflict of any kind invalidates the old values of the row that it updates.
func TestUpserts(t *testing.T) {
	byCode := clause.OnConflict{Columns: []clause.Column{{Name: "code"}},
		DoUpdates: clause.AssignmentColumns([]string{"category", "price"})}
	byID := clause.OnConflict{Columns: []clause.Column{{Name: "id"}},
		DoUpdates: clause.AssignmentColumns([]string{"category", "code"})}
	setsID := clause.OnConflict{Columns: []clause.Column{{Name: "code"}},
		DoUpdates: clause.AssignmentColumns([]string{"id"})}
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{}, nil)
		for name, c := range map[string]struct {
			conflict clause.OnConflict
			rows     []item
		}{
			"by another column":      {byCode, []item{{Code: "code1", Category: "c2", Price: 9}}},
			"new by another column":  {byCode, []item{{Code: "code40", Category: "c2", Price: 9}}},
			"several":                {byCode, []item{{Code: "code1", Category: "c2"}, {Code: "code40", Category: "c2"}}},
			"by key":                 {byID, []item{{ID: 1, Code: "code41", Category: "c2"}}},
			"new by key":             {byID, []item{{ID: 70, Code: "code41", Category: "c2"}}},
			"by key, both":           {byID, []item{{ID: 1, Code: "code41", Category: "c2"}, {ID: 70, Code: "code42"}}},
			"sets the key":           {setsID, []item{{ID: 71, Code: "code1", Category: "c2"}}},
			"nothing":                {clause.OnConflict{DoNothing: true}, []item{{ID: 1, Code: "code1"}}},
			"nothing of one":         {clause.OnConflict{DoNothing: true}, []item{{ID: 1, Code: "code1"}, {ID: 72, Code: "code43"}}},
			"nothing without a key":  {clause.OnConflict{DoNothing: true}, []item{{Code: "code1"}, {Code: "code43"}}},
			"another code, same key": {byCode, []item{{ID: 73, Code: "code1", Category: "c2", Price: 9}}},
		} {
			t.Run(name, func(t *testing.T) {
				w.Reset(t)
				if err := w.gorm.Clauses(c.conflict).Create(slices.Clone(c.rows)).Error; err != nil {
					t.Fatal(err)
				}
				w.fresh(t)
			})
		}
	})
}
