package main

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// This file has the code that a program needs so that its caches follow the database. The source is
// that of mysqlbinlog.New or pglogical.New.

// process is a process of the shop. Processes that share entries have the same prefix.
type process struct {
	*cacheaside.Cache
	products  *cacheaside.Loader[int64, product] // by id
	ids       *cacheaside.Loader[string, int64]  // by SKU: an index, with another key for the same row
	whitelist *bloom.Replica                     // of all ids; other ids are refused
}

func newProcess(rdb *redis.Client, db shop, prefix string) (p *process, err error) {
	p = &process{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.Cache, err = cacheaside.New(rdb,
		&cacheaside.Options{Prefix: prefix, RedisTimeout: patience, ReadTimeout: patience}); err != nil {
		// all processes share one machine here; elsewhere use the default
		return nil, err
	}
	shared, err := bloom.NewRedis(rdb, "products", 100_000, 0.01, &bloom.Options{Prefix: prefix, Timeout: patience})
	if err != nil {
		return nil, err
	}
	if p.whitelist, err = bloom.NewReplica(shared); err != nil {
		return nil, err
	}
	if p.products, err = cacheaside.NewBatchLoader(p.Cache, "product", db.load,
		&cacheaside.LoaderOptions{TTL: time.Hour, Filter: p.whitelist}); err != nil {
		return nil, err
	}
	p.ids, err = cacheaside.NewLoader(p.Cache, "sku", db.idOf, &cacheaside.LoaderOptions{TTL: time.Hour})
	return p, err
}

// newConsumer creates a Consumer that keeps the caches and whitelists of all processes up to date.
// One process runs it. If each process runs one, for failover, set canal.Options.Locker, so that
// only one of them is active at a time.
func (p *process) newConsumer(
	db *sqlx.DB, source canal.Source, schema string, follow func(context.Context, event.Change) error,
) (*canal.Consumer, error) {
	checkpoint, err := canal.NewSQLCheckpoint(db, nil) // the position up to which all changes are processed
	if err != nil {
		return nil, err
	}
	parking, err := parking.NewTable(db, nil) // changes that a handler has failed to process, for an operator
	if err != nil {
		return nil, err
	}
	return canal.NewConsumer(p.Cache, source, checkpoint, []canal.Binding{
		canal.Bind(p.products, schema, "products", canal.IntColumn[int64]("id")),
		canal.Bind(p.ids, schema, "products", canal.TextColumn[string]("sku")),
		canal.Handle("follow", schema, "products", follow), // your own processing, in the order of the log
	}, &canal.Options{
		Parking: parking,
		OnGap: func(ctx context.Context) error {
			// at the first start, and when changes may have been missed: loaders are then
			// invalidated, and a filter must be rebuilt
			// The Consumer adds all later inserts to the filter. So the rebuild only waits for
			// transactions in progress. The table may have been replaced by one with fewer rows.
			_, err := p.whitelist.Rebuild(ctx, bloom.Table[int64](db, "products", "id"),
				&bloom.RebuildOptions{Settle: 100 * time.Millisecond, AllowFewer: true})
			return err
		},
	})
}

// close closes the cache and then its filter. The caller closes the Redis client.
func (p *process) close() {
	if p.Cache != nil {
		p.Close()
	}
	if p.whitelist != nil {
		_ = p.whitelist.Redis.Close() // always nil; closes its replica too
	}
}
