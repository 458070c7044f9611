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
	"github.com/cacheaside/cacheaside/canal/mysqlbinlog"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// This file is what a program has to write so that its caches follow the binary log.

// process is what each process of the shop has. Those that share entries have the same prefix.
type process struct {
	*cacheaside.Cache
	products  *cacheaside.Loader[int64, product] // by id
	ids       *cacheaside.Loader[string, int64]  // by SKU: an index, of which the same row is another key
	whitelist *bloom.Replica                     // of all ids: what it does not know is asked of nobody
}

func newProcess(rdb *redis.Client, db shop, prefix string) (p *process, err error) {
	p = &process{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.Cache, err = cacheaside.New(rdb, &cacheaside.Options{Prefix: prefix, RedisTimeout: patience, ReadTimeout: patience}); err != nil { // here all share one machine; elsewhere the default is better
		return nil, err
	}
	shared, err := bloom.NewRedis(rdb, "products", 100_000, 0.01, &bloom.Options{Prefix: prefix, Timeout: patience})
	if err != nil {
		return nil, err
	}
	if p.whitelist, err = bloom.NewReplica(shared); err != nil {
		return nil, err
	}
	if p.products, err = cacheaside.NewBatchLoader(p.Cache, "product", db.load, &cacheaside.LoaderOptions{TTL: time.Hour, Filter: p.whitelist}); err != nil {
		return nil, err
	}
	p.ids, err = cacheaside.NewLoader(p.Cache, "sku", db.idOf, &cacheaside.LoaderOptions{TTL: time.Hour})
	return p, err
}

// newConsumer has the caches and whitelists of all processes follow the table. One process runs it;
// where each runs one, so that another takes over, canal.Options.Locker has one of them be active
// at a time.
func (p *process) newConsumer(db *sqlx.DB, server mysqlbinlog.Options, schema string, follow func(context.Context, event.Change) error) (*canal.Consumer, error) {
	source, err := mysqlbinlog.New(server)
	if err != nil {
		return nil, err
	}
	checkpoint, err := canal.NewSQLCheckpoint(db, nil) // up to where all is done
	if err != nil {
		return nil, err
	}
	parking, err := parking.NewTable(db, nil) // what a handler has failed to do, for somebody to look at
	if err != nil {
		return nil, err
	}
	return canal.NewConsumer(p.Cache, source, checkpoint, []canal.Binding{
		canal.Bind(p.products, schema, "products", canal.IntColumn[int64]("id")),
		canal.Bind(p.ids, schema, "products", canal.TextColumn[string]("sku")),
		canal.Handle("follow", schema, "products", follow), // anything else that a change is to do, in the order of the log
	}, &canal.Options{
		Parking: parking,
		OnGap: func(ctx context.Context) error { // at the first start, and when something may have been missed: caches are invalidated as a whole then, but a filter has to be read anew
			// All inserts come here, and are told to the filter after this; only what was just
			// being committed has to be waited for. The table may be another, with fewer rows.
			_, err := p.whitelist.Rebuild(ctx, bloom.Table[int64](db, "products", "id"), &bloom.RebuildOptions{Settle: 100 * time.Millisecond, AllowFewer: true})
			return err
		},
	})
}

// close ends the cache, and then what it uses. The Redis client is the caller's.
func (p *process) close() {
	if p.Cache != nil {
		p.Close()
	}
	if p.whitelist != nil {
		_ = p.whitelist.Redis.Close() // always nil; its copy in this process ends with it
	}
}
