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

// scan asks for products that do not exist, each only once: to remember that they do not is of no
// use, and fills Redis.
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
		words: fmt.Sprintf("Somebody tries out numbers. A Bloom filter of the %s products says of nearly all others, in the memory "+
			"of each process, that there is certainly no such row.", thousands(int64(len(ids))))}
	var err error
	if out.without, err = ask(catalogs(f.naive("scanned", load, time.Hour))); err != nil {
		return out, err
	}
	shops, closeFilters, err := f.filtered(ctx, "scanned", load)
	defer closeFilters()
	if err != nil {
		return out, err
	}
	for i, s := range shops { // what exists is never turned away
		if _, err := s.product(ctx, ids[i]); err != nil {
			return out, err
		}
	}
	out.with, err = ask(catalogs(shops))
	return out, err
}

// filtered opens a shop in each process, with a filter in Redis that the first builds from the
// table, and each has a replica of.
func (f *fleet) filtered(ctx context.Context, name string, load loadFunc) (shops []*shop, closeFilters func(), err error) {
	var replicas []*bloom.Replica
	closeFilters = func() {
		for _, r := range replicas {
			r.Close()       //nolint:errcheck // it never fails
			r.Redis.Close() //nolint:errcheck // nor does this
		}
	}
	for i, cache := range f.caches {
		filter, err := bloom.NewRedis(f.clients[i], name, 20_000, 0.01, &bloom.Options{Prefix: f.server.prefix, Timeout: time.Minute})
		if err != nil {
			return nil, closeFilters, err
		}
		if i == 0 { // a program that runs for longer has Maintain do it, in each process
			source := bloom.Table[int64](f.db, f.db.table, "id")
			if _, err := filter.Rebuild(ctx, source, &bloom.RebuildOptions{Settle: -1}); err != nil { // nobody inserts now
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
	for slices.ContainsFunc(replicas, func(r *bloom.Replica) bool { return !r.Stats().Copied }) { // until then they ask Redis
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, closeFilters, err
		}
	}
	return shops, closeFilters, nil
}
