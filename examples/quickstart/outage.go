package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
)

// outage lets the database fail for longer than the TTL.
func outage(ctx context.Context, f *fleet, ids []int64) (failure, error) {
	const (
		products = 200
		ttl      = 300 * time.Millisecond
		away     = time.Second
	)
	var down atomic.Bool
	errDown := errors.New("the database is down")
	load := func(ctx context.Context, id int64) (product, error) {
		if down.Load() {
			return product{}, errDown
		}
		return f.db.product(ctx, id)
	}
	failed := func(shops []catalog, least int64) (int64, error) {
		down.Store(false)
		err := together(ctx, f.goroutines, products, new(atomic.Int64), func(ctx context.Context, i int) error {
			_, err := shops[i%len(shops)].product(ctx, ids[i])
			return err
		})
		if err != nil {
			return 0, err
		}
		down.Store(true)
		defer down.Store(false)
		var errs atomic.Int64
		for end := time.Now().Add(ttl + away); time.Now().Before(end) || errs.Load() < least; {
			err := together(ctx, f.goroutines, products, new(atomic.Int64), func(ctx context.Context, i int) error {
				_, err := shops[i%len(shops)].product(ctx, ids[i])
				if errors.Is(err, errDown) || errors.Is(err, cacheaside.ErrLoadFailed) ||
					errors.Is(err, cacheaside.ErrUnavailable) {
					errs.Add(1)
					return nil
				}
				return err
			})
			if err != nil {
				return 0, err
			}
			if err := sleep(ctx, 50*time.Millisecond); err != nil {
				return 0, err
			}
		}
		return errs.Load(), nil
	}

	out := failure{name: "outage", counted: "reads that failed",
		words: fmt.Sprintf("The database fails for a second, while %d popular products expire. A stale value is "+
			"better than an "+
			"error. An invalidated value would not be shown.", products)}
	shops, err := f.cached("stock", load, &cacheaside.LoaderOptions{TTL: ttl, StaleFor: time.Hour})
	if err != nil {
		return out, err
	}
	if out.without, err = failed(catalogs(f.naive("stock", load, ttl)), 1); err != nil {
		return out, err
	}
	out.with, err = failed(catalogs(shops), 0)
	return out, err
}
