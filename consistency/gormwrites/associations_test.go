package gormwrites

import (
	"testing"

	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"

	"github.com/cacheaside/cacheaside/internal/test/shop"
)

// A shelf has the items of a category. No loader is bound to its table.
type shelf struct {
	Name  string `gorm:"primaryKey;size:50"`
	Items []item `gorm:"foreignKey:Category;references:Name"`
}

// Rows of associations are written by statements of their own, in the transaction of the first one.
func TestAssociations(t *testing.T) {
	shop.EachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		w := start(t, db, gorm.Config{}, nil)
		if _, err := db.Exec("CREATE TABLE shelves (name VARCHAR(50) PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
		w.Read(t.Context())
		full := shelf{Name: "c1", Items: []item{{Code: "code20"}, {Code: "code21"}}}
		if err := w.gorm.Create(&full).Error; err != nil {
			t.Fatal(err)
		}
		w.fresh(t)
		var first item
		if err := w.gorm.First(&first, 1).Error; err != nil { // of category c0
			t.Fatal(err)
		}
		if err := w.gorm.Model(&shelf{Name: "c1"}).Association("Items").Append(&first); err != nil {
			t.Fatal(err)
		}
		w.Relay(t)
		w.fresh(t)
	})
}
