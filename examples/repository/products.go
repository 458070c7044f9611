package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/msgpack"
)

// Product is a row. Its SKU is a second key, which can belong to another product later.
type Product struct {
	ID       int64
	SKU      string
	Name     string
	Category string
	Cents    int64
}

// Page is the page of a product in one language.
type Page struct {
	Title, Text string // the title is the product's name, so a rename must also invalidate the pages
	Facts       map[string]string
}

func (p Page) clone() Page { p.Facts = maps.Clone(p.Facts); return p }

type pageKey struct {
	ID   int64
	Lang string
}

func (p pageKey) text() string { return fmt.Sprintf("%d/%s", p.ID, p.Lang) } // unique per key

// listKey is a page of the products of a category, in the order of their ids.
type listKey struct {
	Category string
	No       int // 0 is the first page
}

func (l listKey) text() string { return fmt.Sprintf("%d/%s", l.No, l.Category) } // a category may contain "/"

const pageSize = 20

// groupOf returns the group of all pages of a category.
func groupOf(category string) string { return "category:" + category }

var languages = []string{"en", "fr"}

// ErrNoProduct is returned for a product that does not exist. Callers do not depend on the cache.
var ErrNoProduct = errors.New("no such product")

// Products reads products through a cache and writes them to the database. Its statements have "?"
// for their arguments; Rebind changes them to the "$1" of PostgreSQL.
type Products struct {
	db     *sqlx.DB
	writer *consistency.Writer
	byID   *cacheaside.Loader[int64, Product]
	bySKU  *cacheaside.Loader[string, int64] // an index: other changes of the row do not invalidate it
	pages  *cacheaside.Loader[pageKey, Page]
	lists  *cacheaside.Loader[listKey, []int64] // ids, so that a change of a row does not invalidate its lists
}

// NewProducts creates the loaders. A cache can have each loader only once, so a process has one
// Products. The whitelist contains all ids. Other ids are refused without a trip to Redis or the
// database.
func NewProducts(
	cache *cacheaside.Cache, db *sqlx.DB, writer *consistency.Writer, whitelist cacheaside.Filter,
) (*Products, error) {
	p := &Products{db: db, writer: writer}
	var errs [4]error
	p.byID, errs[0] = cacheaside.NewBatchLoader(cache, "product", p.loadProducts,
		&cacheaside.LoaderOptions{TTL: time.Hour, Filter: whitelist, ErrorTTL: patience, AuditEvery: -patience})
	p.bySKU, errs[1] = cacheaside.NewLoader(cache, "sku", p.loadID, &cacheaside.LoaderOptions{TTL: time.Hour})
	p.pages, errs[2] = cacheaside.NewLoader(cache, "page", p.loadPage, &cacheaside.LoaderOptions{
		TTL:           time.Hour,
		Key:           cacheaside.KeyOf(pageKey.text),
		Clone:         cacheaside.CloneOf(Page.clone), // otherwise callers share the map and must not change it
		Codec:         msgpack.Codec,
		CompressAbove: 1 << 10, // texts are long
	})
	p.lists, errs[3] = cacheaside.NewLoader(cache, "list", p.loadList, &cacheaside.LoaderOptions{
		TTL:    time.Hour,
		Key:    cacheaside.KeyOf(listKey.text),
		Groups: cacheaside.GroupsOf(func(l listKey, _ []int64) []string { return []string{groupOf(l.Category)} }),
	})
	return p, errors.Join(errs[:]...)
}

// loadProducts is called with ids that are not cached. The absence of an id that is not in the
// returned map is cached, so every failure to read a row must be an error.
func (p *Products) loadProducts(ctx context.Context, ids []int64) (map[int64]Product, error) {
	query, args, err := sqlx.In("SELECT id, sku, name, category, cents FROM products WHERE id IN (?)", ids)
	if err != nil {
		return nil, err
	}
	var rows []Product
	if err := p.db.SelectContext(ctx, &rows, p.db.Rebind(query), args...); err != nil {
		return nil, err
	}
	found := make(map[int64]Product, len(rows))
	for _, row := range rows {
		found[row.ID] = row
	}
	return found, nil
}

// loadID returns sql.ErrNoRows for an unknown SKU.
func (p *Products) loadID(ctx context.Context, sku string) (id int64, err error) {
	err = p.db.GetContext(ctx, &id, p.db.Rebind("SELECT id FROM products WHERE sku = ?"), sku)
	return id, err
}

func (p *Products) loadPage(ctx context.Context, key pageKey) (Page, error) {
	var row struct{ Title, Text, Colour string }
	err := p.db.GetContext(ctx, &row,
		p.db.Rebind("SELECT p.name AS title, t.text, t.colour FROM products p JOIN texts t ON t.product = p.id WHERE "+
			"p.id = ? AND t.lang = ?"), key.ID, key.Lang)
	return Page{row.Title, row.Text, map[string]string{"colour": row.Colour}}, err
}

// loadList returns no ids for a page without products. That is a value like any other.
func (p *Products) loadList(ctx context.Context, l listKey) (ids []int64, err error) {
	err = p.db.SelectContext(ctx, &ids,
		p.db.Rebind("SELECT id FROM products WHERE category = ? ORDER BY id LIMIT ? OFFSET ?"), l.Category, pageSize,
		l.No*pageSize)
	return ids, err
}

// ByID returns a product, or ErrNoProduct.
func (p *Products) ByID(ctx context.Context, id int64) (Product, error) {
	product, err := p.byID.Get(ctx, id)
	return product, own(err)
}

// ByIDs returns the products that exist. If some cannot be read, it also returns a
// *cacheaside.BatchError[int64] with their ids.
func (p *Products) ByIDs(ctx context.Context, ids []int64) (map[int64]Product, error) {
	return p.byID.GetMany(ctx, ids)
}

// ByCategory returns a page of the products of a category. The list of ids can be older than the
// rows, so it skips products that were deleted or have moved. Then the page has fewer products.
func (p *Products) ByCategory(ctx context.Context, category string, no int) ([]Product, error) {
	ids, err := p.lists.Get(ctx, listKey{category, no})
	if err != nil {
		return nil, err
	}
	var found []Product
	for product, err := range p.byID.Each(ctx, ids) {
		switch {
		case errors.Is(err, cacheaside.ErrNotFound):
		case err != nil:
			return nil, err
		case product.Category == category:
			found = append(found, product)
		}
	}
	return found, nil
}

// BySKU returns the product with this SKU, or ErrNoProduct. SKUs are not case-sensitive.
func (p *Products) BySKU(ctx context.Context, sku string) (Product, error) {
	sku = strings.ToUpper(sku)
	id, err := p.bySKU.Get(ctx, sku)
	if err != nil {
		return Product{}, own(err)
	}
	product, err := p.ByID(ctx, id)
	if err == nil && product.SKU != sku { // the product has just got another SKU
		return Product{}, ErrNoProduct
	}
	return product, err
}

// Page returns the page of a product, or ErrNoProduct. The caller may change the returned page.
func (p *Products) Page(ctx context.Context, id int64, lang string) (Page, error) {
	page, err := p.pages.Get(ctx, pageKey{id, lang})
	return page, own(err)
}

func own(err error) error {
	if errors.Is(err, cacheaside.ErrNotFound) || errors.Is(err, sql.ErrNoRows) {
		return ErrNoProduct
	}
	return err
}

// Create adds a product. The absence of its id and of its SKU can be cached, so the write has both
// keys, and the group of the lists that it joins. The Writer also adds the id to the whitelist.
func (p *Products) Create(ctx context.Context, n Product) error {
	n.SKU = strings.ToUpper(n.SKU)
	return p.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.NamedExecContext(ctx,
			"INSERT INTO products (id, sku, name, category, cents, sold) VALUES (:id, :sku, :name, :category, "+
				":cents, 0)", n)
		return err
	}, p.byID.Key(n.ID), p.bySKU.Key(n.SKU), p.lists.GroupKey(groupOf(n.Category)))
}

// Rename changes a product's name. After nil, no cache keeps the old name: if Redis is down, the
// outbox repeats the invalidation later. The row exists, so the whitelist is not needed.
func (p *Products) Rename(ctx context.Context, id int64, name string) error {
	keys := []cacheaside.Key{p.byID.Key(id).Existing()}
	for _, lang := range languages {
		keys = append(keys, p.pages.Key(pageKey{id, lang}))
	}
	return p.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		return one(tx.ExecContext(ctx, tx.Rebind("UPDATE products SET name = ? WHERE id = ?"), name, id))
	}, keys...)
}

// Relabel changes a product's SKU. The write has the keys of the new and the old SKU. The
// transaction reads the old one after it has locked the row.
func (p *Products) Relabel(ctx context.Context, id int64, sku string) error {
	sku = strings.ToUpper(sku)
	return p.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		if err := one(tx.ExecContext(ctx, tx.Rebind("UPDATE products SET sku = sku WHERE id = ?"), id)); err != nil {
			return err
		}
		var old string
		if err := tx.GetContext(ctx, &old, tx.Rebind("SELECT sku FROM products WHERE id = ?"), id); err != nil {
			return err
		}
		if err := consistency.Touch(ctx, p.bySKU.Key(old)); err != nil {
			return err
		}
		return one(tx.ExecContext(ctx, tx.Rebind("UPDATE products SET sku = ? WHERE id = ?"), sku, id))
	}, p.byID.Key(id).Existing(), p.bySKU.Key(sku))
}

// Move changes a product's category. The write has the groups of the new and the old category.
func (p *Products) Move(ctx context.Context, id int64, category string) error {
	return p.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		if err := one(tx.ExecContext(ctx, tx.Rebind("UPDATE products SET category = category WHERE id = ?"),
			id)); err != nil {
			return err
		}
		var old string
		if err := tx.GetContext(ctx, &old, tx.Rebind("SELECT category FROM products WHERE id = ?"), id); err != nil {
			return err
		}
		if err := consistency.Touch(ctx, p.lists.GroupKey(groupOf(old))); err != nil {
			return err
		}
		return one(tx.ExecContext(ctx, tx.Rebind("UPDATE products SET category = ? WHERE id = ?"), category, id))
	}, p.byID.Key(id).Existing(), p.lists.GroupKey(groupOf(category)))
}

// one returns ErrNoProduct if a statement has found no row.
func one(result sql.Result, err error) error {
	if err == nil {
		var n int64
		if n, err = result.RowsAffected(); err == nil && n == 0 {
			err = ErrNoProduct
		}
	}
	return err
}

// Warm loads the n most popular products into the cache, the most popular ones first. A program can
// ignore its error.
func (p *Products) Warm(ctx context.Context, n int) error {
	var ids []int64
	if err := p.db.SelectContext(ctx, &ids, p.db.Rebind("SELECT id FROM products ORDER BY sold DESC, id LIMIT ?"),
		n); err != nil {
		return err
	}
	return p.byID.Warm(ctx, slices.Values(ids), 200, nil) // at most 200 rows per second
}
