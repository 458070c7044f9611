package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
)

// scan reads products that do not exist, each only once. Caching their absence would not help, and
// would fill Redis.
func scan(ctx context.Context, f *fleet, ids []int64) (failure, error) {
	const reads = 1000
	var loads atomic.Int64
	load := func(ctx context.Context, id int64) (product, error) {
		loads.Add(1)
		return f.db.product(ctx, id)
	}
	ask := func(shops []catalog) (int64, error) {
		loads.Store(0)
		err := together(ctx, f.goroutines, reads, new(atomic.Int64), func(ctx context.Context, i int) error {
			if _, err := shops[i%len(shops)].product(ctx, int64(-1-i)); !errors.Is(err, errNoProduct) {
				return fmt.Errorf("a product that does not exist: %w", err)
			}
			return nil
		})
		return loads.Load(), err
	}

	out := failure{name: "scan", counted: fmt.Sprintf("loads for %s different missing rows", thousands(reads)),
		words: fmt.Sprintf("A client tries out numbers. A Bloom filter of the %s products in the memory of each "+
			"process refuses "+
			"nearly all numbers without a row.", thousands(int64(len(ids))))}
	var err error
	if out.without, err = ask(catalogs(f.naive("scanned", load, time.Hour))); err != nil {
		return out, err
	}
	shops, closeFilters, err := f.filtered(ctx, "scanned", load)
	defer closeFilters()
	if err != nil {
		return out, err
	}
	for i, s := range shops { // existing products are never refused
		if _, err := s.product(ctx, ids[i]); err != nil {
			return out, err
		}
	}
	out.with, err = ask(catalogs(shops))
	return out, err
}

// filtered opens a shop in each process. Each shop has a replica of a filter in Redis, which the
// first process builds from the table.
func (f *fleet) filtered(
	ctx context.Context, name string, load loadFunc,
) (shops []*shop, closeFilters func(), err error) {
	var replicas []*bloom.Replica
	closeFilters = func() {
		for _, r := range replicas {
			r.Close()       //nolint:errcheck // always nil
			r.Redis.Close() //nolint:errcheck // always nil
		}
	}
	for i, cache := range f.caches {
		filter, err := bloom.NewRedis(f.clients[i], name, 20_000, 0.01,
			&bloom.Options{Prefix: f.server.prefix, Timeout: time.Minute})
		if err != nil {
			return nil, closeFilters, err
		}
		if i == 0 { // a program that runs longer calls Maintain in each process
			source := bloom.Table[int64](f.db, f.db.table, "id")
			if _, err := filter.Rebuild(ctx, source, &bloom.RebuildOptions{Settle: -1}); err != nil {
				// there are no concurrent inserts
				return nil, closeFilters, errors.Join(err, filter.Close())
			}
		}
		replica, err := bloom.NewReplica(filter)
		if err != nil {
			return nil, closeFilters, errors.Join(err, filter.Close())
		}
		replicas = append(replicas, replica)
		s, err := newShop(cache, name, f.db, load, &cacheaside.LoaderOptions{Filter: replica})
		if err != nil {
			return nil, closeFilters, err
		}
		shops = append(shops, s)
	}
	for slices.ContainsFunc(replicas, func(r *bloom.Replica) bool { return !r.Stats().Copied }) {
		// until then lookups use Redis
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, closeFilters, err
		}
	}
	return shops, closeFilters, nil
}
