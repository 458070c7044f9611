// Repository shows how a program wraps the reads of a repository with the library, in a second and with nothing but Go installed:
//
//	go run ./examples/repository
//
// Products is the repository, over sqlx: its loaders read rows, its methods get and write them. A story then tells what that costs.
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

// Page is what a shop shows of a product in one language.
type Page struct {
	Title, Text string // the title is the product's name: who renames it must invalidate its pages, too
	Facts       map[string]string
}

func (p Page) clone() Page { p.Facts = maps.Clone(p.Facts); return p }

type pageKey struct {
	ID   int64
	Lang string
}

// text names a page in Redis. Two keys must not have the same.
func (k pageKey) text() string { return fmt.Sprintf("%d/%s", k.ID, k.Lang) }

var languages = []string{"en", "fr"}

var (
	// ErrNoProduct is the repository's own, so that its callers need not know of the cache.
	ErrNoProduct = errors.New("no such product")

	// ErrStale means that a write was done, but that readers may get what was before it, until its TTL has passed. Do not write again:
	// call Invalidate, until that succeeds. (Who cannot wait for that leaves it to a job, with a note in the write's own transaction.)
	ErrStale = errors.New("written, but still cached as it was")
)

// Products reads products through a cache, and writes them into the database.
type Products struct {
	db      *sqlx.DB
	selects atomic.Int64 // how many there were
	byID    *cacheaside.Loader[int64, Product]
	pages   *cacheaside.Loader[pageKey, Page]
}

// NewProducts makes the loaders, which a cache can have once. So a process has one Products.
func NewProducts(cache *cacheaside.Cache, db *sqlx.DB) (*Products, error) {
	p := &Products{db: db}
	var errs [2]error
	p.byID, errs[0] = cacheaside.NewBatchLoader(cache, "product", p.loadProducts, &cacheaside.LoaderOptions{TTL: time.Hour})
	p.pages, errs[1] = cacheaside.NewLoader(cache, "page", p.loadPage, &cacheaside.LoaderOptions{
		TTL:           time.Hour,
		Key:           cacheaside.KeyOf(pageKey.text),
		Clone:         cacheaside.CloneOf(Page.clone), // else all callers share one map of facts, and must not change it
		Codec:         cacheaside.MsgPack,
		CompressAbove: 1 << 10, // texts are long
	})
	return p, errors.Join(errs[:]...)
}

// loadProducts is called for the ids, one at least, that the cache does not have. One that is not in the map has no row, and that is
// remembered: so whatever keeps a row from being read must be an error.
func (p *Products) loadProducts(ctx context.Context, ids []int64) (map[int64]Product, error) {
	query, args, err := sqlx.In("SELECT id, name, cents FROM products WHERE id IN (?)", ids)
	if err != nil {
		return nil, err
	}
	p.selects.Add(1)
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

// loadPage returns sql.ErrNoRows, as sqlx gives it, for a page that does not exist.
func (p *Products) loadPage(ctx context.Context, key pageKey) (Page, error) {
	p.selects.Add(1)
	var row struct{ Title, Text, Colour string }
	err := p.db.GetContext(ctx, &row, p.db.Rebind(`SELECT p.name AS title, t.text, t.colour
		FROM products p JOIN texts t ON t.product = p.id WHERE p.id = ? AND t.lang = ?`), key.ID, key.Lang)
	return Page{row.Title, row.Text, map[string]string{"colour": row.Colour}}, err
}

// ByID returns a product, or ErrNoProduct.
func (p *Products) ByID(ctx context.Context, id int64) (Product, error) {
	product, err := p.byID.Get(ctx, id)
	return product, own(err)
}

// ByIDs returns those that exist. If it returns a *cacheaside.BatchError[int64] too, it does not know of the ids in that.
func (p *Products) ByIDs(ctx context.Context, ids []int64) (map[int64]Product, error) {
	return p.byID.GetMany(ctx, ids)
}

// Page returns the page of a product, or ErrNoProduct. The caller may change it.
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

// Rename changes a product's name. See ErrStale.
func (p *Products) Rename(ctx context.Context, id int64, name string) error {
	return p.write(ctx, id, "UPDATE products SET name = ? WHERE id = ?", name, id)
}

// Create adds a product. See ErrStale: that there is no such product may be cached.
func (p *Products) Create(ctx context.Context, n Product) error {
	return p.write(ctx, n.ID, "INSERT INTO products (id, name, cents, sold) VALUES (?, ?, ?, 0)", n.ID, n.Name, n.Cents)
}

// write commits, and then invalidates: the other way round, a reader would cache the old row in between.
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
	// Also when Commit fails, for if it was the reply that was lost, the row has changed. And also when ctx has ended: the cache must learn
	// of it although the user has left. That takes no longer than four times Options.RedisTimeout for each loader.
	if stale := p.Invalidate(context.WithoutCancel(ctx), id); stale != nil {
		return errors.Join(err, fmt.Errorf("product %d: %w: %w", id, ErrStale, stale))
	}
	return err
}

// Invalidate ends all that is cached of these products. (In the memory of other processes, that ends by itself after MemoryTTL.)
func (p *Products) Invalidate(ctx context.Context, ids ...int64) error {
	var pages []pageKey
	for _, id := range ids {
		for _, lang := range languages {
			pages = append(pages, pageKey{id, lang})
		}
	}
	return errors.Join(p.byID.Invalidate(ctx, ids...), p.pages.Invalidate(ctx, pages...))
}

// Warm fills the cache with the n most popular products, the most popular ones first. If it fails, a program can do without.
func (p *Products) Warm(ctx context.Context, n int, progress io.Writer) error {
	p.selects.Add(1)
	var ids []int64
	if err := p.db.SelectContext(ctx, &ids, p.db.Rebind("SELECT id FROM products ORDER BY sold DESC, id LIMIT ?"), n); err != nil {
		return err
	}
	var errs []error
	for _, err := range p.byID.Warm(ctx, slices.Values(ids), 200) { // rows a second: the database has others to serve
		if errs = append(errs, err); len(errs)%50 == 0 || len(errs) == len(ids) {
			fmt.Fprintf(progress, "   %3d of %d\n", len(errs), len(ids))
		}
	}
	return errors.Join(errs...)
}

const schema = `
	CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, cents INTEGER, sold INTEGER);
	CREATE TABLE texts (product INTEGER, lang TEXT, text TEXT, colour TEXT, PRIMARY KEY (product, lang));
	WITH RECURSIVE ids(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 200)
		INSERT INTO products SELECT id, 'Lamp ' || id, 100 * id, 1000 - id FROM ids;
	INSERT INTO texts SELECT id, 'en', replace(hex(zeroblob(100)), '00', 'A lamp that is made to last. '), 'copper' FROM products;`

func openDatabase(ctx context.Context) (*sqlx.DB, error) {
	db, err := sqlx.ConnectContext(ctx, "sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // a second one would have a database of its own
	if _, err = db.ExecContext(ctx, schema); err != nil {
		err = errors.Join(err, db.Close())
	}
	return db, err
}

// With ContextTimeoutEnabled the library reads faster, and its callers leave more promptly: it need not watch over each command from
// another goroutine.
func openRedis(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
}

func main() {
	address := flag.String("redis", "", "`address` (host:port) of a real Redis to use instead of the embedded one")
	flag.Parse()
	if err := run(context.Background(), *address, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "repository:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address string, out io.Writer) error {
	if address == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		address = server.Addr()
	}
	rdb := openRedis(address)
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("the Redis at %s: %w", address, err)
	}
	db, err := openDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()

	var processes [2]story
	prefix := "cacheaside-repository-" + rand.Text() // of this run alone
	for i := range processes {
		cache, err := cacheaside.New(rdb, &cacheaside.Options{Prefix: prefix})
		if err != nil {
			return err
		}
		defer cache.Close() // before the client and the database, which it uses
		products, err := NewProducts(cache, db)
		if err != nil {
			return err
		}
		processes[i] = story{Products: products, cache: cache, out: out}
	}
	first, second := &processes[0], &processes[1]
	first.tell(ctx)
	second.say("7. Another process starts. What is in Redis is not loaded again.")
	second.cost(second.Warm(ctx, 100, out))

	return errors.Join(first.err, second.err, first.cache.Close(), second.cache.Close(), sweep(ctx, rdb, prefix))
}

// sweep leaves nothing in a Redis of yours.
func sweep(ctx context.Context, rdb *redis.Client, prefix string) error {
	var errs []error
	keys := rdb.Scan(ctx, 0, prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		errs = append(errs, rdb.Del(ctx, keys.Val()).Err())
	}
	return errors.Join(append(errs, keys.Err())...)
}

// story is what a process does, told as it goes.
type story struct {
	*Products
	cache *cacheaside.Cache
	out   io.Writer

	queries int64
	stats   cacheaside.Stats
	err     error
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// cost tells what was needed since it was last told. (Memory or Redis: right after a load, that is a matter of microseconds.)
func (s *story) cost(errs ...error) {
	queries, stats := s.selects.Load(), s.cache.Stats()
	s.say("   => SQL queries: %d, rows asked for: %d, answers from memory or Redis: %d\n", queries-s.queries, stats.Loads-s.stats.Loads,
		stats.MemoryHits+stats.RedisHits-s.stats.MemoryHits-s.stats.RedisHits)
	s.queries, s.stats, s.err = queries, stats, errors.Join(append(errs, s.err)...)
}

func (s *story) tell(ctx context.Context) {
	s.say("1. At the start the 100 most popular products are warmed.")
	s.cost(s.Warm(ctx, 100, s.out))

	s.say("2. A list of five, twice: two are warm, one does not exist.")
	for range 2 {
		found, err := s.ByIDs(ctx, []int64{99, 100, 101, 102, 999})
		s.say("   found %v", slices.Sorted(maps.Keys(found)))
		s.cost(err)
	}

	s.say("3. That one is created. That it did not exist was cached, but is no more.")
	_, missing := s.ByID(ctx, 999)
	created := s.Create(ctx, Product{ID: 999, Name: "Lantern", Cents: 2500})
	product, err := s.ByID(ctx, 999)
	s.say("   %v; then %q", missing, product.Name)
	s.cost(created, err)

	s.say("4. A page is read by two callers; the first one changes its copy.")
	mine, err1 := s.Page(ctx, 1, "en")
	if err1 == nil {
		mine.Facts["seen"] = "yes"
	}
	yours, err2 := s.Page(ctx, 1, "en")
	s.say("   %s: %v and %v", yours.Title, mine.Facts, yours.Facts)
	s.cost(err1, err2)

	s.say("5. Its product is renamed: both are read anew.")
	renamed := s.Rename(ctx, 1, "Night light")
	product, err1 = s.ByID(ctx, 1)
	yours, err2 = s.Page(ctx, 1, "en")
	s.say("   %s, and on the page %s", product.Name, yours.Title)
	s.cost(renamed, err1, err2)

	s.say("6. The database fails. What is cached is found; the rest fails, and is not asked for again within ErrorTTL.")
	_, broken := s.db.ExecContext(ctx, "ALTER TABLE products RENAME TO away")
	for range 2 {
		found, err := s.ByIDs(ctx, []int64{1, 2, 150})
		s.say("   found %v", slices.Sorted(maps.Keys(found)))
		if failed, ok := errors.AsType[*cacheaside.BatchError[int64]](err); ok {
			s.say("   %d: %v", 150, failed.Errs[150])
			err = nil
		}
		s.cost(err)
	}
	_, mended := s.db.ExecContext(ctx, "ALTER TABLE away RENAME TO products")
	s.err = errors.Join(s.err, broken, mended)
}
