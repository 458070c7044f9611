// Repository shows a repository that uses the library. It runs for a second and only needs Go:
//
//	go run ./examples/repository
//
// Products (products.go) is the repository, over sqlx. Its methods read rows through loaders, and
// write rows so that no cache keeps an old value. process.go creates the objects that a process
// needs once. The program then runs through nine steps and prints the cost of each.
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
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

func main() {
	address := flag.String("redis", "", "`address` (host:port) of a real Redis to use instead of the embedded one")
	var d dsns
	flag.StringVar(&d.mysql, "mysql", "",
		"`DSN` of a MySQL or MariaDB database, for go-sql-driver/mysql, to use instead of an embedded one; the "+
			"program creates the tables products, texts and cacheaside_outbox there, and drops them at the end")
	flag.StringVar(&d.postgres, "postgres", "",
		"`URL` of a PostgreSQL database, such as postgres://user:password@host:5432/database, to use in the same way")
	flag.Parse()
	if err := run(context.Background(), *address, d, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "repository:", err)
		os.Exit(1)
	}
}

// dsns names the database. Both are empty for an embedded one.
type dsns struct{ mysql, postgres string }

func run(ctx context.Context, address string, d dsns, out io.Writer) (err error) {
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
	db, dialect, err := openDatabase(d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := fill(ctx, db, dialect); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, empty(ctx, db, dialect)) }()

	var processes [2]story
	prefix := "cacheaside-repository-" + rand.Text() // separates this run from others
	defer func() { err = errors.Join(err, sweep(ctx, rdb, prefix)) }()
	for i := range processes {
		p, err := start(rdb, db, dialect, prefix)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		processes[i] = story{process: p, out: out}
	}
	first, second := &processes[0], &processes[1]
	first.run(ctx)
	second.say("9. Another process warms its cache. Rows that are in Redis are not loaded again.")
	second.cost(second.Warm(ctx, 100))
	return errors.Join(first.err, second.err)
}

// sweep deletes all keys with the prefix from Redis.
func sweep(ctx context.Context, rdb *redis.Client, prefix string) error {
	var errs []error
	keys := rdb.Scan(ctx, 0, prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		errs = append(errs, rdb.Del(ctx, keys.Val()).Err())
	}
	return errors.Join(append(errs, keys.Err())...)
}

// story runs the steps of one process and prints them.
type story struct {
	*process
	out   io.Writer
	stats cacheaside.Stats
	err   error
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// cost prints what was needed since the last call. It adds hits in memory and in Redis, because a
// value reaches memory some microseconds after its load.
func (s *story) cost(errs ...error) {
	stats := s.cache.Stats()
	s.say("   => SQL queries: %d, rows requested: %d, hits in memory or Redis: %d, refused by the filter: %d\n",
		stats.LoadCalls-s.stats.LoadCalls, stats.Loads-s.stats.Loads,
		stats.MemoryHits+stats.RedisHits-s.stats.MemoryHits-s.stats.RedisHits, stats.Filtered-s.stats.Filtered)
	s.stats, s.err = stats, errors.Join(append(errs, s.err)...)
}

// listed waits until the whitelist has been built in the background.
func (p *process) listed(ctx context.Context) error {
	for {
		if maybe, err := p.whitelist.MightContain(ctx, "-1"); !maybe || err != nil {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *story) list(ctx context.Context) {
	s.say("7. The desk lamps are listed. A product moves to them, and the list is loaded again.")
	before, err1 := s.ByCategory(ctx, "desk", 0)
	moved := s.Move(ctx, 7, "desk")
	after, err2 := s.ByCategory(ctx, "desk", 0)
	s.say("   %v; then %v", ids(before), ids(after))
	s.cost(err1, moved, err2)
}

func ids(products []Product) (all []int64) {
	for _, p := range products {
		all = append(all, p.ID)
	}
	return all
}

func (s *story) run(ctx context.Context) {
	s.say("1. The process builds the whitelist and loads the 100 most popular products.")
	s.cost(s.listed(ctx), s.Warm(ctx, 100))

	s.say("2. It reads five products, twice: two are cached, and the whitelist refuses one that does not exist.")
	for range 2 {
		found, err := s.ByIDs(ctx, []int64{99, 100, 101, 102, 999})
		s.say("   found %v", slices.Sorted(maps.Keys(found)))
		s.cost(err)
	}

	s.say("3. That product is created, and the next read finds it.")
	_, missing := s.BySKU(ctx, "lantern")
	created := s.Create(ctx, Product{ID: 999, SKU: "lantern", Name: "Lantern", Category: "garden", Cents: 2500})
	product, err := s.BySKU(ctx, "lantern")
	s.say("   %v; then %q", missing, product.Name)
	s.cost(created, err)

	s.say("4. It gets another SKU. Reads by the new SKU find it, reads by the old one do not.")
	relabelled := s.Relabel(ctx, 999, "lantern-2")
	_, missing = s.BySKU(ctx, "lantern")
	product, err = s.BySKU(ctx, "lantern-2")
	s.say("   %v; but %q", missing, product.Name)
	s.cost(relabelled, err)

	s.say("5. Two callers read a page. The first one changes its copy.")
	mine, err1 := s.Page(ctx, 1, "en")
	if err1 == nil {
		mine.Facts["seen"] = "yes"
	}
	yours, err2 := s.Page(ctx, 1, "en")
	s.say("   %s: %v and %v", yours.Title, mine.Facts, yours.Facts)
	s.cost(err1, err2)

	s.say("6. The product is renamed. Product and page are loaded again.")
	renamed := s.Rename(ctx, 1, "Night light")
	product, err1 = s.ByID(ctx, 1)
	yours, err2 = s.Page(ctx, 1, "en")
	s.say("   %s, and on the page %s", product.Name, yours.Title)
	s.cost(renamed, err1, err2)

	s.list(ctx)

	s.say("8. The database fails. Cached rows are found. A row that is not cached fails, and is not loaded again " +
		"within ErrorTTL.")
	_, broken := s.db.ExecContext(ctx, "ALTER TABLE products RENAME TO away")
	for range 2 {
		found, err := s.ByIDs(ctx, []int64{1, 2, 150})
		s.say("   found %v", slices.Sorted(maps.Keys(found)))
		if failed, ok := errors.AsType[*cacheaside.BatchError[int64]](err); ok {
			// without the name of the loader and the hash of the key
			s.say("   %d: %v", 150, errors.Unwrap(failed.Errs[150]))
			err = nil
		}
		s.cost(err)
	}
	_, restored := s.db.ExecContext(ctx, "ALTER TABLE away RENAME TO products")
	s.err = errors.Join(s.err, broken, restored)
}
