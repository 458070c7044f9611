package gormwrites_test

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/gormwrites"
)

type product struct {
	ID       int64
	Category string
	Cents    int64
}

// service is what a program has before it uses the plugin.
type service struct {
	db       *gorm.DB
	w        *consistency.Writer // with an outbox
	products *cacheaside.Loader[int64, product]
	lists    *cacheaside.Loader[string, []product] // by category, in a group of the category
}

// Bind each loader to its table, and use the plugin. Then no write names keys.
func ExampleNew() {
	use := func(s *service) error {
		plugin, err := gormwrites.New(s.w, []canal.Binding{
			canal.Bind(s.products, "shop", "products", canal.IntColumn[int64]("id")),
			canal.BindGroup(s.lists, "shop", "products", canal.Text("category", "category:%s"), "cents"),
		}, nil)
		if err != nil {
			return err
		}
		return s.db.Use(plugin)
	}
	move := func(ctx context.Context, s *service) error {
		return s.db.WithContext(ctx).Model(&product{ID: 1}).Update("category", "toys").Error
	}
	fmt.Println(use != nil, move != nil)
	// Output: true true
}

// A transaction whose keys are invalidated directly after its commit.
func ExampleUpdate() {
	replace := func(ctx context.Context, s *service) error {
		return gormwrites.Update(ctx, s.w, s.db, func(tx *gorm.DB) error {
			if err := tx.Delete(&product{ID: 1}).Error; err != nil {
				return err
			}
			return tx.Create(&product{Category: "toys"}).Error
		})
	}
	fmt.Println(replace != nil)
	// Output: true
}

// Exec does not say which rows it changes, so the caller does.
func ExampleTouches() {
	sell := func(s *service, id int64) error {
		return s.db.Scopes(gormwrites.Touches(s.products.Key(id))).
			Exec("UPDATE products SET stock = stock - 1 WHERE id = ?", id).Error
	}
	fmt.Println(sell != nil)
	// Output: true
}
