// Repository shows how a program wraps the reads of a repository with the library, in a second and with nothing but Go installed:
//
//	go run ./examples/repository
//
// Products is the repository, over sqlx: its loaders read rows, its methods get them and write. run tells a story with it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/cacheaside/cacheaside"
)

// Product is a row.
type Product struct {
	ID    int64
	Name  string
	Cents int64
}

// Page is what a shop shows of a product in a language.
type Page struct {
	Title string // the product's name: who renames it must invalidate its pages, too
	Text  string
	Facts map[string]string
}

func (p Page) clone() Page { p.Facts = maps.Clone(p.Facts); return p }

type pageKey struct {
	ID   int64
	Lang string
}

// text names the page in Redis. Two keys must not have the same.
func (k pageKey) text() string { return fmt.Sprintf("%d/%s", k.ID, k.Lang) }

var languages = []string{"en", "fr"}

var (
	// ErrNoProduct is the repository's own, so that its callers need not know of the cache.
	ErrNoProduct = errors.New("no such product")

	// ErrStale means that a write was done, but that readers may see what was before it, until its TTL has passed. Do not write again:
	// call Invalidate, until it succeeds. (Who cannot wait for that leaves it to a job, by a note in the write's own transaction.)
	ErrStale = errors.New("written, but still cached as it was")
)

// Products reads products through a cache, and writes them into the database.
type Products struct {
	db      *sqlx.DB
	queries atomic.Int64 // how many SELECTs were needed
	byID    *cacheaside.Loader[int64, Product]
	pages   *cacheaside.Loader[pageKey, Page]
}

func NewProducts(cache *cacheaside.Cache, db *sqlx.DB) (*Products, error) {
	p := &Products{db: db}
	var err, err2 error
	p.byID, err = cacheaside.NewBatchLoader(cache, "product", p.loadProducts, &cacheaside.LoaderOptions{TTL: time.Hour})
	p.pages, err2 = cacheaside.NewLoader(cache, "page", p.loadPage, &cacheaside.LoaderOptions{
		TTL:           time.Hour,
		Key:           cacheaside.KeyOf(pageKey.text),
		Clone:         cacheaside.CloneOf(Page.clone), // for those who change Facts; without it all callers would share one map
		Codec:         cacheaside.MsgPack,
		CompressAbove: 1 << 10, // texts are long
	})
	return p, errors.Join(err, err2)
}

// loadProducts is what the cache calls for those products that it does not have. It must not leave out a row that exists: an id that is
// missing in the map is remembered as one that has no row.
func (p *Products) loadProducts(ctx context.Context, ids []int64) (map[int64]Product, error) {
	query, args, err := sqlx.In("SELECT id, name, cents FROM products WHERE id IN (?)", ids) // ids are never none
	if err != nil {
		return nil, err
	}
	p.queries.Add(1)
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

// loadPage returns sql.ErrNoRows, as sqlx gives it, for a page that does not exist: the cache understands that.
func (p *Products) loadPage(ctx context.Context, key pageKey) (Page, error) {
	p.queries.Add(1)
	var row struct{ Title, Text, Colour string }
	err := p.db.GetContext(ctx, &row, p.db.Rebind(`SELECT p.name AS title, t.text, t.colour
		FROM products p JOIN texts t ON t.product = p.id WHERE p.id = ? AND t.lang = ?`), key.ID, key.Lang)
	return Page{Title: row.Title, Text: row.Text, Facts: map[string]string{"colour": row.Colour}}, err
}

func (p *Products) ByID(ctx context.Context, id int64) (Product, error) {
	product, err := p.byID.Get(ctx, id)
	return product, own(err)
}

func (p *Products) Page(ctx context.Context, id int64, lang string) (Page, error) {
	page, err := p.pages.Get(ctx, pageKey{id, lang})
	return page, own(err)
}

func own(err error) error {
	if errors.Is(err, cacheaside.ErrNotFound) {
		return ErrNoProduct
	}
	return err
}

// ByIDs returns those that exist. With a *cacheaside.BatchError[int64] it has failed for the ids in that, and only for them.
func (p *Products) ByIDs(ctx context.Context, ids []int64) (map[int64]Product, error) {
	return p.byID.GetMany(ctx, ids)
}

func (p *Products) Rename(ctx context.Context, id int64, name string) error {
	return p.write(ctx, id, "UPDATE products SET name = ? WHERE id = ?", name, id)
}

// Create invalidates as well: that there is no such product may be cached.
func (p *Products) Create(ctx context.Context, n Product) error {
	return p.write(ctx, n.ID, "INSERT INTO products (id, name, cents, sold) VALUES (?, ?, ?, 0)", n.ID, n.Name, n.Cents)
}

// write commits, then invalidates: the other way round, a reader would cache the old row again in between.
func (p *Products) write(ctx context.Context, id int64, query string, args ...any) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // nothing, after Commit
	if _, err := tx.ExecContext(ctx, p.db.Rebind(query), args...); err != nil {
		return err
	}
	err = tx.Commit()
	// Whatever Commit says: where the connection broke, it may have been done. And whatever ctx says: a user who hangs up just now must not
	// keep the cache from learning of it. It takes no more than four times Options.RedisTimeout.
	if stale := p.Invalidate(context.WithoutCancel(ctx), id); stale != nil {
		return errors.Join(err, fmt.Errorf("product %d: %w: %w", id, ErrStale, stale))
	}
	return err
}

// Invalidate ends all that is cached of these products. (In the memory of other processes it ends by itself, after MemoryTTL.)
func (p *Products) Invalidate(ctx context.Context, ids ...int64) error {
	var pages []pageKey
	for _, id := range ids {
		for _, lang := range languages {
			pages = append(pages, pageKey{id, lang})
		}
	}
	return errors.Join(p.byID.Invalidate(ctx, ids...), p.pages.Invalidate(ctx, pages...))
}

// Warm fills the cache with the n most popular products, those first that are asked for most.
func (p *Products) Warm(ctx context.Context, n int, out io.Writer) error {
	p.queries.Add(1)
	var ids []int64
	if err := p.db.SelectContext(ctx, &ids, p.db.Rebind("SELECT id FROM products ORDER BY sold DESC, id LIMIT ?"), n); err != nil {
		return err
	}
	var errs []error
	for _, err := range p.byID.Warm(ctx, slices.Values(ids), 200) { // rows a second, so that it leaves the database time for others
		errs = append(errs, err)
		if done := len(errs); done%50 == 0 || done == len(ids) {
			fmt.Fprintf(out, "   %3d of %d\n", done, len(ids))
		}
	}
	return errors.Join(errs...) // a program can as well start without
}
