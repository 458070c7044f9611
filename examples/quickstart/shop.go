package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// This file has all that a program needs to use the library: a Cache for the process, a Loader for
// each kind of row, Get to read, and Invalidate after a write.

// newCache creates the Cache of a process, with its memory tier.
func newCache(rdb *redis.Client, prefix string) (*cacheaside.Cache, error) {
	return cacheaside.New(rdb, &cacheaside.Options{ // nil means the defaults
		Prefix: prefix,

		// All processes, Redis and the database share one machine here. Elsewhere use the defaults.
		RedisTimeout: time.Minute,
		LeaseTTL:     time.Minute,

		Logger: slog.New(slog.DiscardHandler), // it would log between the tables that Redis is emptied
	})
}

// shop is one process of a web shop.
type shop struct {
	db       *database
	products *cacheaside.Loader[int64, product]
}

// newShop creates the loader of products. load reads one product from the database. The types of
// key and value follow from it. The options can be nil.
func newShop(
	cache *cacheaside.Cache, name string, db *database, load loadFunc, options *cacheaside.LoaderOptions,
) (*shop, error) {
	products, err := cacheaside.NewLoader(cache, name, load, options)
	if err != nil {
		return nil, err
	}
	return &shop{db: db, products: products}, nil
}

// product reads a product from this process's memory, or Redis, or the database. One request of all
// processes reads the database, and the others wait for its result. The absence of a product is
// cached too.
func (s *shop) product(ctx context.Context, id int64) (product, error) {
	p, err := s.products.Get(ctx, id)
	if errors.Is(err, cacheaside.ErrNotFound) {
		return product{}, errNoProduct // a handler would send 404
	}
	return p, err
}

// setPrice changes a product in the database, and then invalidates it. After Invalidate has
// returned nil, no older value is stored, even by a read in progress. The row has changed, so the
// invalidation must not be cancelled when the user disconnects.
func (s *shop) setPrice(ctx context.Context, id, cents int64) error {
	if err := s.db.setPrice(ctx, id, cents); err != nil {
		return err
	}
	return s.products.Invalidate(context.WithoutCancel(ctx), id)
}

// catalog is the interface of a shop, with or without the library.
type catalog interface {
	product(ctx context.Context, id int64) (product, error)
	setPrice(ctx context.Context, id, cents int64) error
}

// catalogs converts shops of either kind to catalogs.
func catalogs[S catalog](shops []S) []catalog {
	out := make([]catalog, len(shops))
	for i, s := range shops {
		out[i] = s
	}
	return out
}

// fleet is the processes of the shop. They only share Redis and the database.
type fleet struct {
	goroutines int
	server     *redisServer
	db         *database
	clients    []*redis.Client
	caches     []*cacheaside.Cache
}

func newFleet(c config, server *redisServer, db *database) (*fleet, error) {
	f := &fleet{goroutines: c.goroutines, server: server, db: db}
	for range c.caches {
		rdb := server.client(max(c.goroutines, callers/c.caches))
		f.clients = append(f.clients, rdb)
		cache, err := newCache(rdb, server.prefix)
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.caches = append(f.caches, cache)
	}
	return f, nil
}

// cached opens a shop in each process, with the library. The name separates its entries from those
// of other experiments.
func (f *fleet) cached(name string, load loadFunc, options *cacheaside.LoaderOptions) ([]*shop, error) {
	shops := make([]*shop, len(f.caches))
	for i, cache := range f.caches {
		var err error
		if shops[i], err = newShop(cache, name, f.db, load, options); err != nil {
			return nil, err
		}
	}
	return shops, nil
}

// naive opens a shop in each process, without the library.
func (f *fleet) naive(name string, load loadFunc, ttl time.Duration) []*naiveShop {
	shops := make([]*naiveShop, len(f.clients))
	for i, rdb := range f.clients {
		prefix := fmt.Sprintf("%s:naive-%s:", f.server.prefix, name)
		shops[i] = &naiveShop{rdb: rdb, prefix: prefix, ttl: ttl, load: load, db: f.db}
	}
	return shops
}

// close closes the caches, which waits for their loads, and then the clients.
func (f *fleet) close() error {
	var errs []error
	for _, cache := range f.caches {
		errs = append(errs, cache.Close())
	}
	for _, rdb := range f.clients {
		errs = append(errs, rdb.Close())
	}
	return errors.Join(errs...)
}
