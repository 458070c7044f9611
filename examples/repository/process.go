package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/consistency"
)

// process is what a process has once, for all of its repositories, and those. Processes that share
// rows have the same prefix.
type process struct {
	*Products
	cache     *cacheaside.Cache
	whitelist *bloom.Replica
	stop      func()
}

// patience is Redis' time-out, the life of a lease, and the time for which a failed load is
// remembered: 0, for the defaults. The tests, which count, have more of it, for machines that are
// busy, and no audits of the whitelist.
var patience time.Duration

func start(rdb redis.UniversalClient, db *sqlx.DB, dialect consistency.Dialect, prefix string) (p *process, err error) {
	p = &process{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.cache, err = cacheaside.New(rdb, &cacheaside.Options{Prefix: prefix, RedisTimeout: patience, LeaseTTL: patience}); err != nil {
		return p, err
	}
	outbox, err := consistency.NewSQLOutbox(db, dialect, nil)
	if err != nil {
		return p, err
	}
	writer, err := consistency.NewWriter(db, p.cache, &consistency.Options{Queue: outbox})
	if err != nil {
		return p, err
	}
	p.Products = &Products{writer: writer}
	shared, err := bloom.NewRedis(rdb, "products", 1_000_000, 0.01, &bloom.Options{Prefix: prefix, Timeout: patience})
	if err != nil {
		return p, err
	}
	if p.whitelist, err = bloom.NewReplica(shared); err != nil {
		return p, errors.Join(err, shared.Close())
	}
	if p.Products, err = NewProducts(p.cache, db, writer, p.whitelist); err != nil {
		return p, err
	}
	ctx, stop := context.WithCancel(context.Background())
	var maintains sync.WaitGroup
	p.stop = func() { stop(); maintains.Wait() }
	// A transaction that inserts may take so long until its COMMIT.
	o := &bloom.MaintainOptions{Rebuild: &bloom.RebuildOptions{Settle: 20 * time.Millisecond}}
	maintains.Go(func() { _ = p.whitelist.Maintain(ctx, bloom.Table[int64](db, "products", "id"), o) }) // it ends with ctx
	return p, nil
}

// Close ends it, in the order in which one uses the other. The Redis client and the database are
// the caller's.
func (p *process) Close() error {
	var errs []error
	if p.stop != nil {
		p.stop()
	}
	if p.Products != nil {
		errs = append(errs, p.writer.Close())
	}
	if p.cache != nil {
		errs = append(errs, p.cache.Close())
	}
	if p.whitelist != nil {
		errs = append(errs, p.whitelist.Redis.Close()) // with its replica
	}
	return errors.Join(errs...)
}

// With ContextTimeoutEnabled the library reads faster, and its callers leave more promptly: it need
// not watch over each command from another goroutine.
func openRedis(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
}

// openDatabase opens MySQL or MariaDB, or without a dsn an SQLite in memory.
func openDatabase(dsn string) (*sqlx.DB, consistency.Dialect, error) {
	if dsn == "" {
		db, err := sqlx.Open("sqlite", ":memory:")
		if err == nil {
			db.SetMaxOpenConns(1) // a second one would have a database of its own
		}
		return db, consistency.SQLite, err
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, 0, err
	}
	c.ClientFoundRows = true // a row that is there is found, also by an UPDATE that changes nothing
	db, err := sqlx.Open("mysql", c.FormatDSN())
	return db, consistency.MySQL, err
}

// fill makes the tables, and 200 products.
func fill(ctx context.Context, db *sqlx.DB, dialect consistency.Dialect) error {
	outbox, err := consistency.NewSQLOutbox(db, dialect, nil)
	if err != nil {
		return err
	}
	if err := outbox.CreateTable(ctx); err != nil { // in production one of your migrations, see Dialect.Schema
		return err
	}
	for _, s := range []string{
		"CREATE TABLE products (id BIGINT PRIMARY KEY, sku VARCHAR(40) NOT NULL UNIQUE, name VARCHAR(200) NOT NULL, cents BIGINT NOT NULL, sold INTEGER NOT NULL)",
		"CREATE TABLE texts (product BIGINT, lang VARCHAR(5), text TEXT, colour VARCHAR(40), PRIMARY KEY (product, lang))",
	} {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // nothing, after Commit
	for id := 1; id <= 200; id++ {
		if _, err := tx.ExecContext(ctx, "INSERT INTO products VALUES (?, ?, ?, ?, ?)", id, fmt.Sprintf("LAMP-%d", id), fmt.Sprintf("Lamp %d", id), 100*id, 1000-id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO texts VALUES (?, 'en', ?, 'copper')", id, strings.Repeat("A lamp that is made to last. ", 100)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// empty removes them again.
func empty(ctx context.Context, db *sqlx.DB) (err error) {
	for _, table := range []string{"products", "texts", "cacheaside_outbox"} {
		_, failed := db.ExecContext(ctx, "DROP TABLE "+table)
		err = errors.Join(err, failed)
	}
	return err
}
