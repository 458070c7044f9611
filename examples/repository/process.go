package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

// process has the repository of a process and the objects that all of its repositories share.
// Processes that share cached rows use the same prefix.
type process struct {
	*Products
	cache     *cacheaside.Cache
	whitelist *bloom.Replica
	stop      func()
}

// patience is used as time-out for Redis, as TTL of leases, and as ErrorTTL. 0 means the defaults.
// The tests count operations, so they set a longer time, for busy machines, and no audits.
var patience time.Duration

func start(rdb redis.UniversalClient, db *sqlx.DB, dialect sqloutbox.Dialect, prefix string) (p *process, err error) {
	p = &process{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.cache, err = cacheaside.New(rdb,
		&cacheaside.Options{Prefix: prefix, RedisTimeout: patience, LeaseTTL: patience}); err != nil {
		return p, err
	}
	outbox, err := sqloutbox.New(db, dialect, nil)
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
	// Settle is the longest time from an insert until the COMMIT of its transaction.
	o := &bloom.MaintainOptions{Rebuild: &bloom.RebuildOptions{Settle: 20 * time.Millisecond}}
	// returns when ctx ends
	maintains.Go(func() { _ = p.whitelist.Maintain(ctx, bloom.Table[int64](db, "products", "id"), o) })
	return p, nil
}

// Close closes each object before those that it uses. The caller closes the Redis client and the
// database.
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
		errs = append(errs, p.whitelist.Redis.Close()) // closes the replica too
	}
	return errors.Join(errs...)
}

// openRedis returns a client with ContextTimeoutEnabled. Without it each command needs a second
// goroutine that watches the caller's context.
func openRedis(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
}

// openDatabase opens PostgreSQL, or MySQL or MariaDB, or SQLite in memory if both DSNs are empty.
func openDatabase(d dsns) (*sqlx.DB, sqloutbox.Dialect, error) {
	switch {
	case d.postgres != "":
		db, err := sqlx.Open("pgx", d.postgres)
		return db, sqloutbox.Postgres, err
	case d.mysql != "":
		c, err := mysql.ParseDSN(d.mysql)
		if err != nil {
			return nil, 0, err
		}
		c.ClientFoundRows = true // an UPDATE that changes nothing still counts the row
		db, err := sqlx.Open("mysql", c.FormatDSN())
		return db, sqloutbox.MySQL, err
	}
	db, err := sqlx.Open("sqlite", ":memory:")
	if err == nil {
		db.SetMaxOpenConns(1) // each connection has its own database in memory
	}
	return db, sqloutbox.SQLite, err
}

// fill creates the tables and 200 products.
func fill(ctx context.Context, db *sqlx.DB, dialect sqloutbox.Dialect) error {
	outbox, err := sqloutbox.New(db, dialect, nil)
	if err != nil {
		return err
	}
	if err := outbox.CreateTable(ctx); err != nil { // in production use a migration, see Dialect.Schema
		return err
	}
	for _, s := range []string{
		"CREATE TABLE products (id BIGINT PRIMARY KEY, sku VARCHAR(40) NOT NULL UNIQUE, name VARCHAR(200) NOT NULL, " +
			"category VARCHAR(40) NOT NULL, cents BIGINT NOT NULL, sold INTEGER NOT NULL)",
		"CREATE TABLE texts (product BIGINT, lang VARCHAR(5), text TEXT, colour VARCHAR(40), PRIMARY KEY (product, " +
			"lang))",
	} {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // has no effect after Commit
	for id := 1; id <= 200; id++ {
		category := "floor"
		if id%40 == 0 {
			category = "desk"
		}
		if _, err := tx.ExecContext(ctx, tx.Rebind("INSERT INTO products VALUES (?, ?, ?, ?, ?, ?)"), id,
			fmt.Sprintf("LAMP-%d", id), fmt.Sprintf("Lamp %d", id), category, 100*id, 1000-id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, tx.Rebind("INSERT INTO texts VALUES (?, 'en', ?, 'copper')"), id,
			strings.Repeat("A lamp that is made to last. ", 100)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// empty drops the tables. In PostgreSQL that of the outbox is in public, for any search_path.
func empty(ctx context.Context, db *sqlx.DB, dialect sqloutbox.Dialect) (err error) {
	outbox := "cacheaside_outbox"
	if dialect == sqloutbox.Postgres {
		outbox = "public." + outbox
	}
	for _, table := range []string{"products", "texts", outbox} {
		_, failed := db.ExecContext(ctx, "DROP TABLE "+table)
		err = errors.Join(err, failed)
	}
	return err
}
