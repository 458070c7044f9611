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

// Product is a row. A SKU is another name for it, which may be given to another product later.
type Product struct {
	ID    int64
	SKU   string
	Name  string
	Cents int64
}

// Page is what a shop shows of a product in one language.
type Page struct {
	Title, Text string // the title is the product's name: a writer that renames it must invalidate its pages, too
	Facts       map[string]string
}

func (p Page) clone() Page { p.Facts = maps.Clone(p.Facts); return p }

type pageKey struct {
	ID   int64
	Lang string
}

func (p pageKey) text() string { return fmt.Sprintf("%d/%s", p.ID, p.Lang) } // in Redis: two keys must not have the same

var languages = []string{"en", "fr"}

var ErrNoProduct = errors.New("no such product") // so that callers need not know of the cache

// Products reads products through a cache, and writes them into the database.
type Products struct {
	db     *sqlx.DB
	writer *consistency.Writer
	byID   *cacheaside.Loader[int64, Product]
	bySKU  *cacheaside.Loader[string, int64] // an index: it need not be invalidated when the rest of the row changes
	pages  *cacheaside.Loader[pageKey, Page]
}

// NewProducts makes the loaders, which a cache can have once. So a process has one Products.
// whitelist knows all ids that there are: what it does not know is asked of neither Redis nor the
// database.
func NewProducts(cache *cacheaside.Cache, db *sqlx.DB, writer *consistency.Writer, whitelist cacheaside.Filter) (*Products, error) {
	p := &Products{db: db, writer: writer}
	var errs [3]error
	p.byID, errs[0] = cacheaside.NewBatchLoader(cache, "product", p.loadProducts, &cacheaside.LoaderOptions{TTL: time.Hour, Filter: whitelist, ErrorTTL: patience, AuditEvery: -patience})
	p.bySKU, errs[1] = cacheaside.NewLoader(cache, "sku", p.loadID, &cacheaside.LoaderOptions{TTL: time.Hour})
	p.pages, errs[2] = cacheaside.NewLoader(cache, "page", p.loadPage, &cacheaside.LoaderOptions{
		TTL:           time.Hour,
		Key:           cacheaside.KeyOf(pageKey.text),
		Clone:         cacheaside.CloneOf(Page.clone), // else all callers share one map of facts, and must not change it
		Codec:         msgpack.Codec,
		CompressAbove: 1 << 10, // texts are long
	})
	return p, errors.Join(errs[:]...)
}

// loadProducts is called for the ids that the cache does not have. One that is not in the map has
// no row, and that is remembered: so whatever keeps a row from being read must be an error.
func (p *Products) loadProducts(ctx context.Context, ids []int64) (map[int64]Product, error) {
	query, args, err := sqlx.In("SELECT id, sku, name, cents FROM products WHERE id IN (?)", ids)
	if err != nil {
		return nil, err
	}
	var rows []Product
	if err := p.db.SelectContext(ctx, &rows, query, args...); err != nil {
		return nil, err
	}
	found := make(map[int64]Product, len(rows))
	for _, row := range rows {
		found[row.ID] = row
	}
	return found, nil
}

// loadID returns sql.ErrNoRows, as sqlx gives it, for a SKU that no product has.
func (p *Products) loadID(ctx context.Context, sku string) (id int64, err error) {
	err = p.db.GetContext(ctx, &id, "SELECT id FROM products WHERE sku = ?", sku)
	return id, err
}

func (p *Products) loadPage(ctx context.Context, key pageKey) (Page, error) {
	var row struct{ Title, Text, Colour string }
	err := p.db.GetContext(ctx, &row, "SELECT p.name AS title, t.text, t.colour FROM products p JOIN texts t ON t.product = p.id WHERE p.id = ? AND t.lang = ?", key.ID, key.Lang)
	return Page{row.Title, row.Text, map[string]string{"colour": row.Colour}}, err
}

// ByID returns a product, or ErrNoProduct.
func (p *Products) ByID(ctx context.Context, id int64) (Product, error) {
	product, err := p.byID.Get(ctx, id)
	return product, own(err)
}

// ByIDs returns those that exist. If it returns a *cacheaside.BatchError[int64] too, it does not
// know of the ids in that.
func (p *Products) ByIDs(ctx context.Context, ids []int64) (map[int64]Product, error) {
	return p.byID.GetMany(ctx, ids)
}

// BySKU returns the product that has the SKU now, or ErrNoProduct. SKUs are the same in upper and
// lower case, to the caches as to any collation.
func (p *Products) BySKU(ctx context.Context, sku string) (Product, error) {
	sku = strings.ToUpper(sku)
	id, err := p.bySKU.Get(ctx, sku)
	if err != nil {
		return Product{}, own(err)
	}
	product, err := p.ByID(ctx, id)
	if err == nil && product.SKU != sku { // it has just been given another
		return Product{}, ErrNoProduct
	}
	return product, err
}

// Page returns the page of a product, or ErrNoProduct. The caller may change it.
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

// Create adds a product. That there is none with its id and SKU may be cached, and is what the
// whitelist says: so both keys are the write's.
func (p *Products) Create(ctx context.Context, n Product) error {
	n.SKU = strings.ToUpper(n.SKU)
	return p.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.NamedExecContext(ctx, "INSERT INTO products (id, sku, name, cents, sold) VALUES (:id, :sku, :name, :cents, 0)", n)
		return err
	}, p.byID.Key(n.ID), p.bySKU.Key(n.SKU))
}

// Rename changes a product's name. nil means that it is done, and that no cache keeps the old name:
// if Redis fails just now, the outbox sees to that later. The row is there, so the whitelist need
// not be told.
func (p *Products) Rename(ctx context.Context, id int64, name string) error {
	keys := []cacheaside.Key{p.byID.Key(id).Existing()}
	for _, lang := range languages {
		keys = append(keys, p.pages.Key(pageKey{id, lang}))
	}
	return p.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		return one(tx.ExecContext(ctx, "UPDATE products SET name = ? WHERE id = ?", name, id))
	}, keys...)
}

// Relabel gives a product another SKU. Both are the write's keys. Only the transaction can tell the
// old one, and locks the row first, so that nobody changes it in between.
func (p *Products) Relabel(ctx context.Context, id int64, sku string) error {
	sku = strings.ToUpper(sku)
	return p.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		if err := one(tx.ExecContext(ctx, "UPDATE products SET sku = sku WHERE id = ?", id)); err != nil {
			return err
		}
		var old string
		if err := tx.GetContext(ctx, &old, "SELECT sku FROM products WHERE id = ?", id); err != nil {
			return err
		}
		if err := consistency.Touch(ctx, p.bySKU.Key(old)); err != nil {
			return err
		}
		return one(tx.ExecContext(ctx, "UPDATE products SET sku = ? WHERE id = ?", sku, id))
	}, p.byID.Key(id).Existing(), p.bySKU.Key(sku))
}

// one is ErrNoProduct if no row was found.
func one(result sql.Result, err error) error {
	if err == nil {
		var n int64
		if n, err = result.RowsAffected(); err == nil && n == 0 {
			err = ErrNoProduct
		}
	}
	return err
}

// Warm fills the cache with the n most popular products, the most popular ones first. If it fails,
// a program can do without.
func (p *Products) Warm(ctx context.Context, n int) error {
	var ids []int64
	if err := p.db.SelectContext(ctx, &ids, "SELECT id FROM products ORDER BY sold DESC, id LIMIT ?", n); err != nil {
		return err
	}
	return p.byID.Warm(ctx, slices.Values(ids), 200, nil) // rows a second: the database has others to serve
}
