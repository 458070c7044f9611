package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
)

// failure is a classic failure of caching, with a count without the library and with it.
type failure struct {
	name, counted, words string
	without, with        int64
}

// classic runs a failure.
type classic struct {
	name string
	run  func(ctx context.Context, f *fleet, ids []int64) (failure, error)
}

// classics lists all failures. Each creates its shops twice, without and with the library, and does
// the same with both.
var classics = []classic{
	{"breakdown", breakdown},
	{"penetration", penetration},
	{"scan", scan},
	{"avalanche", avalanche},
	{"outage", outage},
	{"inconsistency", inconsistency},
}

const callers = 200 // of a hot key

// breakdownLoad is the duration of a load of the hot key.
const breakdownLoad = 50 * time.Millisecond

// breakdownLeast is the number of loads without the library that must have started before one of
// them returns. Tests set it for slow machines.
var breakdownLeast int64

// breakdown lets a hot key expire, and then reads it in all processes at the same time.
func breakdown(ctx context.Context, f *fleet, ids []int64) (failure, error) {
	const life = 200 * time.Millisecond // TTL of the first value
	hot := ids[0]
	var loads atomic.Int64
	var first atomic.Bool
	load := func(ctx context.Context, id int64) (product, error) {
		loads.Add(1)
		if first.Load() {
			cacheaside.SetTTL(ctx, life)
		}
		if err := sleep(ctx, breakdownLoad); err != nil {
			return product{}, err
		}
		return f.db.product(ctx, id)
	}
	naive := func(ctx context.Context, id int64) (product, error) {
		p, err := load(ctx, id)
		for err == nil && !first.Load() && loads.Load() < breakdownLeast {
			err = sleep(ctx, time.Millisecond)
		}
		return p, err
	}
	storm := func(before, after []catalog) (int64, error) {
		first.Store(true)
		for _, s := range before { // store it in every process
			if _, err := s.product(ctx, hot); err != nil {
				return 0, err
			}
		}
		first.Store(false)
		if err := sleep(ctx, life+100*time.Millisecond); err != nil {
			return 0, err
		}
		loads.Store(0)
		err := together(ctx, callers, callers, new(atomic.Int64), func(ctx context.Context, i int) error {
			_, err := after[i%len(after)].product(ctx, hot)
			return err
		})
		return loads.Load(), err
	}

	out := failure{name: "breakdown", counted: "loads of a hot key that has expired",
		words: fmt.Sprintf("%d callers in %d processes read it at the same time, and a load takes %d ms. All of them "+
			"need the "+
			"same row: one loads it, the others wait for it.", callers, len(f.caches), breakdownLoad.Milliseconds())}
	// otherwise the key would not expire for readers
	shops, err := f.cached("hot", load, &cacheaside.LoaderOptions{StaleFor: -1, EarlyRefresh: -1})
	if err != nil {
		return out, err
	}
	if out.without, err = storm(catalogs(f.naive("hot", naive, life)),
		catalogs(f.naive("hot", naive, time.Hour))); err != nil {
		return out, err
	}
	out.with, err = storm(catalogs(shops), catalogs(shops))
	return out, err
}

// penetration reads products that do not exist, as a crawler with old links or an attacker does.
func penetration(ctx context.Context, f *fleet, _ []int64) (failure, error) {
	const reads, products = 1000, 50
	var loads atomic.Int64
	load := func(ctx context.Context, id int64) (product, error) {
		loads.Add(1)
		return f.db.product(ctx, id)
	}
	crawl := func(shops []catalog) (int64, error) {
		loads.Store(0)
		err := together(ctx, f.goroutines, reads, new(atomic.Int64), func(ctx context.Context, i int) error {
			_, err := shops[i%len(shops)].product(ctx, int64(-1-i%products)) // existing products have positive numbers
			if errors.Is(err, errNoProduct) {
				return nil
			}
			return cmp.Or(err, errors.New("a product that does not exist was found"))
		})
		return loads.Load(), err
	}

	out := failure{name: "penetration", counted: fmt.Sprintf("loads for %s reads of missing rows", thousands(reads)),
		words: fmt.Sprintf("They read %d products that do not exist. Without a row there is nothing to cache, unless "+
			"the cache "+
			"stores the absence.", products)}
	shops, err := f.cached("missing", load, nil)
	if err != nil {
		return out, err
	}
	if out.without, err = crawl(catalogs(f.naive("missing", load, time.Hour))); err != nil {
		return out, err
	}
	out.with, err = crawl(catalogs(shops))
	return out, err
}

// avalanche stores many products at the same time, and reads them continuously.
func avalanche(ctx context.Context, f *fleet, ids []int64) (failure, error) {
	const (
		products = 1000
		ttl      = time.Second
		jitter   = 0.5 // each TTL is shortened by up to half
		window   = 50 * time.Millisecond
	)
	var loads moments
	load := func(ctx context.Context, id int64) (product, error) {
		loads.add(time.Now())
		return f.db.product(ctx, id)
	}
	watch := func(shops []catalog) (int64, error) {
		read := func(ctx context.Context, i int) error {
			_, err := shops[i%len(shops)].product(ctx, ids[i])
			return err
		}
		if err := together(ctx, f.goroutines, products, new(atomic.Int64), read); err != nil {
			return 0, err
		}
		loads.forget()
		end := time.Now().Add(ttl + 4*window)
		err := together(ctx, f.goroutines, f.goroutines, new(atomic.Int64),
			func(ctx context.Context, reader int) error {
				for time.Now().Before(end) || loads.none() { // each goroutine reads its share repeatedly
					for i := reader; i < products; i += f.goroutines {
						if err := read(ctx, i); err != nil {
							return err
						}
					}
					if err := sleep(ctx, 2*time.Millisecond); err != nil {
						return err
					}
				}
				return nil
			})
		return loads.most(window), err
	}

	out := failure{name: "avalanche", counted: fmt.Sprintf("most loads within %d ms", window.Milliseconds()),
		words: fmt.Sprintf("%s products were stored at the same time, for %.0f s, so they expire at the same time, "+
			"unless TTLs "+
			"are shortened at random, here by up to half.", thousands(products), ttl.Seconds())}
	shops, err := f.cached("season", load, &cacheaside.LoaderOptions{TTL: ttl, Jitter: jitter})
	if err != nil {
		return out, err
	}
	if out.without, err = watch(catalogs(f.naive("season", load, ttl))); err != nil {
		return out, err
	}
	out.with, err = watch(catalogs(shops))
	return out, err
}
