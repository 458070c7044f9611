// Package ormtest tests the plugins of object mappers, which put the keys of what they write into
// an outbox.
package ormtest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A World has loaders of a table of items, bound to it, and an outbox.
type World struct {
	DB       *sqlx.DB
	Cache    *cacheaside.Cache
	Outbox   *sqloutbox.Outbox
	Writer   *consistency.Writer
	Bindings []canal.Binding

	Items *cacheaside.Loader[int64, string]  // by id
	Codes *cacheaside.Loader[string, int64]  // the id by code
	Lists *cacheaside.Loader[string, string] // by category, in a group of the category
}

// columns are those of the table after its id.
const columns = `code VARCHAR(50) NOT NULL UNIQUE, category VARCHAR(50) NOT NULL, price BIGINT NOT NULL,
	deleted_at TIMESTAMP NULL`

var (
	dialects = map[string]sqloutbox.Dialect{
		"sqlite": sqloutbox.SQLite, "pgx": sqloutbox.Postgres, "mysql": sqloutbox.MySQL,
	}
	ids = map[string]string{
		"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "pgx": "BIGSERIAL PRIMARY KEY",
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY",
	}
)

// Open returns a World without a Relay. Options of the Writer other than Level are set by Open, and
// the client is not closed by Close.
func Open(db *sqlx.DB, client redis.UniversalClient, level consistency.Level) (_ *World, err error) {
	w := &World{DB: db}
	w.Cache, err = cacheaside.New(client, &cacheaside.Options{Prefix: "orm", MemoryBytes: -1, LeaseTTL: time.Second,
		StrictWrites: true})
	if err != nil {
		return nil, err
	}
	if w.Outbox, err = sqloutbox.New(db, dialects[db.DriverName()], nil); err != nil {
		return nil, err
	}
	if w.Writer, err = consistency.NewWriter(db, w.Cache, &consistency.Options{Level: level, Queue: w.Outbox,
		NoRelay: true, AsyncDelay: time.Millisecond}); err != nil {
		return nil, err
	}
	options := func() *cacheaside.LoaderOptions { // nothing heals by itself
		return &cacheaside.LoaderOptions{TTL: time.Hour, NullTTL: time.Hour, Jitter: -1, EarlyRefresh: -1}
	}
	w.Items, err = cacheaside.NewLoader(w.Cache, "item", w.item, options())
	if err != nil {
		return nil, err
	}
	if w.Codes, err = cacheaside.NewLoader(w.Cache, "code", w.code, options()); err != nil {
		return nil, err
	}
	o := options()
	o.Groups = cacheaside.GroupsOf(func(category, _ string) []string { return []string{"category:" + category} })
	if w.Lists, err = cacheaside.NewLoader(w.Cache, "list", w.list, o); err != nil {
		return nil, err
	}
	w.Bindings = []canal.Binding{
		canal.Bind(w.Items, "shop", "items", canal.IntColumn[int64]("id")),
		canal.Bind(w.Codes, "shop", "items", canal.TextColumn[string]("code")),
		canal.BindGroup(w.Lists, "shop", "items", canal.Text("category", "category:%s"), "id", "price", "deleted_at"),
	}
	return w, nil
}

// Client returns a client with the settings that are recommended. It is closed when the test ends.
func Client(t testing.TB, server *testenv.Redis) *redis.Client {
	t.Helper()
	o := server.Options()
	o.ContextTimeoutEnabled = true
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Start opens a World with tables and ten items, which it closes when the test ends.
func Start(t testing.TB, db *sqlx.DB, client redis.UniversalClient, level consistency.Level) *World {
	t.Helper()
	w, err := Open(db, client, level)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	if err := w.CreateTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// CreateTables creates the tables, and ten items in three categories.
func (w *World) CreateTables(ctx context.Context) error {
	if _, err := w.DB.ExecContext(ctx, "CREATE TABLE items (id "+ids[w.DB.DriverName()]+", "+columns+")"); err != nil {
		return err
	}
	for n := range 10 {
		if _, err := w.DB.ExecContext(ctx, w.DB.Rebind("INSERT INTO items (code, category, price) VALUES (?, ?, ?)"),
			Code(n), Category(n), n); err != nil {
			return err
		}
	}
	return w.Outbox.CreateTable(ctx)
}

// Reset restores the ten items, and caches all keys.
func (w *World) Reset(t testing.TB) {
	t.Helper()
	w.Relay(t)
	if _, err := w.DB.Exec("DELETE FROM items"); err != nil {
		t.Fatal(err)
	}
	for n := range 10 {
		if _, err := w.DB.Exec(w.DB.Rebind("INSERT INTO items (id, code, category, price) VALUES (?, ?, ?, ?)"), n+1,
			Code(n), Category(n), n); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{w.Items.InvalidateAll(t.Context()), w.Codes.InvalidateAll(t.Context()),
		w.Lists.InvalidateAll(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.Read(t.Context())
}

// Close closes the Writer and the Cache.
func (w *World) Close() {
	_ = w.Writer.Close()
	_ = w.Cache.Close()
}

// Code returns the nth code.
func Code(n int) string { return fmt.Sprintf("code%d", n) }

// Category returns one of three categories.
func Category(n int) string { return fmt.Sprintf("c%d", n%3) }

func (w *World) item(ctx context.Context, id int64) (text string, err error) {
	var r struct {
		Code, Category string
		Price          int64
	}
	err = w.DB.GetContext(ctx, &r,
		w.DB.Rebind("SELECT code, category, price FROM items WHERE id = ? AND deleted_at IS NULL"), id)
	return fmt.Sprint(r.Code, " ", r.Category, " ", r.Price), err
}

func (w *World) code(ctx context.Context, code string) (id int64, err error) {
	err = w.DB.GetContext(ctx, &id, w.DB.Rebind("SELECT id FROM items WHERE code = ? AND deleted_at IS NULL"), code)
	return id, err
}

func (w *World) list(ctx context.Context, category string) (string, error) {
	var rows []struct{ ID, Price int64 }
	err := w.DB.SelectContext(ctx, &rows, w.DB.Rebind(
		"SELECT id, price FROM items WHERE category = ? AND deleted_at IS NULL ORDER BY id"), category)
	return fmt.Sprint(rows), err
}

// checkedIDs and checkedCodes are the keys that are compared: also some without rows, whose absence
// is cached.
var (
	checkedIDs   = append(upTo(1, 20), 50, 51, 60, 70, 71, 72, 73)
	checkedCodes = slices.Concat(upTo(0, 9), upTo(20, 22), upTo(30, 33), upTo(40, 43))
)

func upTo(first, last int64) (all []int64) {
	for n := first; n <= last; n++ {
		all = append(all, n)
	}
	return all
}

// RandomCode returns a code that is compared.
func RandomCode(r *rand.Rand) string { return Code(int(checkedCodes[r.IntN(len(checkedCodes))])) }

// Read reads all keys of all loaders, and so caches them. It ignores errors.
func (w *World) Read(ctx context.Context) { w.each(ctx, func(string, error, error) {}) }

// Stale returns the keys whose cached values differ from the database.
func (w *World) Stale(ctx context.Context) (stale []string) {
	w.each(ctx, func(key string, cached, loaded error) {
		if cached != nil || loaded != nil {
			stale = append(stale, fmt.Sprint(key, ": ", cached, loaded))
		}
	})
	return stale
}

// each compares all keys with the database, and calls f with each.
func (w *World) each(ctx context.Context, f func(key string, wrong, failed error)) {
	var all []int64
	if err := w.DB.SelectContext(ctx, &all, "SELECT id FROM items"); err != nil {
		f("all", nil, err)
	}
	all = append(all, checkedIDs...)
	slices.Sort(all)
	for _, id := range slices.Compact(all) {
		compare(ctx, f, w.Items, w.item, id)
	}
	for _, n := range checkedCodes {
		compare(ctx, f, w.Codes, w.code, Code(int(n)))
	}
	for n := range 3 {
		compare(ctx, f, w.Lists, w.list, Category(n))
	}
}

func compare[K, V comparable](
	ctx context.Context, f func(string, error, error), l *cacheaside.Loader[K, V],
	load func(context.Context, K) (V, error), key K,
) {
	got, err := l.Get(ctx, key)
	want, loaded := load(ctx, key)
	if (err == nil) != (loaded == nil) {
		f(fmt.Sprint(l.AllKeys().Loader, " ", key), fmt.Errorf("cached: %w; loaded: %w", err, loaded), nil)
		return
	}
	if err == nil && got != want {
		f(fmt.Sprint(l.AllKeys().Loader, " ", key), fmt.Errorf("cached: %v; loaded: %v", got, want), nil)
	}
}

// Depth returns the number of items in the outbox.
func (w *World) Depth(t testing.TB) int {
	t.Helper()
	d, err := w.Outbox.Depth(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return d.Items
}

// Relay runs a Relay until the outbox is empty.
func (w *World) Relay(t testing.TB) {
	t.Helper()
	relay, err := consistency.NewRelay(w.Cache, w.Outbox, &consistency.RelayOptions{Poll: 5 * time.Millisecond,
		ClaimFor: time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error)
	go func() { ended <- relay.Run(ctx) }()
	testenv.Eventually(t, "the outbox is empty", func() bool { return w.Depth(t) == 0 })
	stop()
	if err := testenv.Receive(t, "the relay ends", ended); err != nil {
		t.Fatal(err)
	}
}
