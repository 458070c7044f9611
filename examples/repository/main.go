// Repository shows how a program wraps a repository with the library, in a second and with nothing
// but Go installed:
//
//	go run ./examples/repository
//
// Products (products.go) is the repository, over sqlx: its loaders read rows, its methods get them,
// and write them so that no cache keeps what was. process.go is what a process needs for that,
// once. A story then tells what it costs.
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
	dsn := flag.String("mysql", "", "`DSN` of a MySQL or MariaDB database, for go-sql-driver/mysql, to use instead of an embedded one; the tables products, texts and cacheaside_outbox are made there, and removed")
	flag.Parse()
	if err := run(context.Background(), *address, *dsn, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "repository:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address, dsn string, out io.Writer) (err error) {
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
	db, dialect, err := openDatabase(dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := fill(ctx, db, dialect); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, empty(ctx, db)) }()

	var processes [2]story
	prefix := "cacheaside-repository-" + rand.Text() // of this run alone
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
	first.tell(ctx)
	second.say("8. Another process is warmed. What is in Redis is not loaded again.")
	second.cost(second.Warm(ctx, 100))
	return errors.Join(first.err, second.err)
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
	*process
	out   io.Writer
	stats cacheaside.Stats
	err   error
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// cost tells what was needed since it was last told. (Memory or Redis: right after a load, that is
// a matter of microseconds.)
func (s *story) cost(errs ...error) {
	stats := s.cache.Stats()
	s.say("   => SQL queries: %d, rows asked for: %d, answers from memory or Redis: %d, turned away: %d\n", stats.LoadCalls-s.stats.LoadCalls, stats.Loads-s.stats.Loads,
		stats.MemoryHits+stats.RedisHits-s.stats.MemoryHits-s.stats.RedisHits, stats.Filtered-s.stats.Filtered)
	s.stats, s.err = stats, errors.Join(append(errs, s.err)...)
}

// listed waits until the whitelist is built, which it is in the background.
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

func (s *story) tell(ctx context.Context) {
	s.say("1. At the start the whitelist is built, and the 100 most popular products are warmed.")
	s.cost(s.listed(ctx), s.Warm(ctx, 100))

	s.say("2. A list of five, twice: two are warm, one does not exist, as the whitelist knows.")
	for range 2 {
		found, err := s.ByIDs(ctx, []int64{99, 100, 101, 102, 999})
		s.say("   found %v", slices.Sorted(maps.Keys(found)))
		s.cost(err)
	}

	s.say("3. That one is created, and found at once.")
	_, missing := s.BySKU(ctx, "lantern")
	created := s.Create(ctx, Product{ID: 999, SKU: "lantern", Name: "Lantern", Cents: 2500})
	product, err := s.BySKU(ctx, "lantern")
	s.say("   %v; then %q", missing, product.Name)
	s.cost(created, err)

	s.say("4. It gets another SKU: it is found by that, and by the old one no more.")
	relabelled := s.Relabel(ctx, 999, "lantern-2")
	_, missing = s.BySKU(ctx, "lantern")
	product, err = s.BySKU(ctx, "lantern-2")
	s.say("   %v; but %q", missing, product.Name)
	s.cost(relabelled, err)

	s.say("5. A page is read by two callers; the first one changes its copy.")
	mine, err1 := s.Page(ctx, 1, "en")
	if err1 == nil {
		mine.Facts["seen"] = "yes"
	}
	yours, err2 := s.Page(ctx, 1, "en")
	s.say("   %s: %v and %v", yours.Title, mine.Facts, yours.Facts)
	s.cost(err1, err2)

	s.say("6. Its product is renamed: both are read anew.")
	renamed := s.Rename(ctx, 1, "Night light")
	product, err1 = s.ByID(ctx, 1)
	yours, err2 = s.Page(ctx, 1, "en")
	s.say("   %s, and on the page %s", product.Name, yours.Title)
	s.cost(renamed, err1, err2)

	s.say("7. The database fails. What is cached is found; the rest fails, and is not asked for again within ErrorTTL.")
	_, broken := s.db.ExecContext(ctx, "ALTER TABLE products RENAME TO away")
	for range 2 {
		found, err := s.ByIDs(ctx, []int64{1, 2, 150})
		s.say("   found %v", slices.Sorted(maps.Keys(found)))
		if failed, ok := errors.AsType[*cacheaside.BatchError[int64]](err); ok {
			s.say("   %d: %v", 150, errors.Unwrap(failed.Errs[150])) // without the name of the loader and the hash of the key
			err = nil
		}
		s.cost(err)
	}
	_, mended := s.db.ExecContext(ctx, "ALTER TABLE away RENAME TO products")
	s.err = errors.Join(s.err, broken, mended)
}
