package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
)

// replay is the trace and the results.
type replay struct {
	accesses []int64
	distinct int64
	next     atomic.Int64 // index of the next access

	took      time.Duration
	latencies []time.Duration    // of each access
	stats     []cacheaside.Stats // of each cache
	reads     int64              // counted by the database
}

func newReplay(t *trace) *replay {
	return &replay{accesses: t.accesses, distinct: int64(len(distinct(t.accesses))),
		latencies: make([]time.Duration, len(t.accesses))}
}

// run reads all products of the trace, in its order, from the caches in turn.
func (r *replay) run(ctx context.Context, f *fleet) error {
	// Nothing expires during the replay, so one process reads each product once from the database.
	shops, err := f.cached("product", f.db.product, &cacheaside.LoaderOptions{TTL: time.Hour, MemoryTTL: time.Hour})
	if err != nil {
		return err
	}
	f.db.reads.Store(0)
	started := time.Now()
	err = together(ctx, f.goroutines, len(r.accesses), &r.next, func(ctx context.Context, i int) error {
		began := time.Now()
		p, err := shops[i%len(shops)].product(ctx, r.accesses[i])
		r.latencies[i] = time.Since(began)
		if err == nil && p.ID != r.accesses[i] {
			err = fmt.Errorf("read product %d, got %d", r.accesses[i], p.ID)
		}
		return err
	})
	r.took = time.Since(started)
	r.reads = f.db.reads.Load()
	for _, s := range shops {
		r.stats = append(r.stats, s.products.Stats())
	}
	return err
}

func (r *replay) percent() int {
	return int(min(r.next.Load(), int64(len(r.accesses))) * 100 / int64(max(len(r.accesses), 1)))
}

// check fails unless the database was read once for each distinct product.
func (r *replay) check() error {
	if r.reads != r.distinct {
		return fmt.Errorf("the database was read %d times for %d distinct products; it should be once for each",
			r.reads, r.distinct)
	}
	return nil
}

// served counts the requests of one cache, or of all, by the tier that served them.
type served struct {
	requests, memory, redis, shared, loads int64
	p50, p99                               time.Duration
}

// of returns the counts of cache i.
func (r *replay) of(i int) served {
	var latencies []time.Duration
	for j := i; j < len(r.latencies); j += len(r.stats) {
		latencies = append(latencies, r.latencies[j])
	}
	return count(latencies, r.stats[i])
}

// total returns the counts of all caches.
func (r *replay) total() served {
	var sum cacheaside.Stats
	for _, s := range r.stats {
		sum.MemoryHits += s.MemoryHits
		sum.RedisHits += s.RedisHits
		sum.Loads += s.Loads
	}
	return count(slices.Clone(r.latencies), sum)
}

// count sorts latencies. Concurrent requests for a key share one lookup. Requests that did not
// start a lookup are counted as shared.
func count(latencies []time.Duration, s cacheaside.Stats) served {
	slices.Sort(latencies)
	a := served{requests: int64(len(latencies)), memory: s.MemoryHits, redis: s.RedisHits, loads: s.Loads}
	a.shared = a.requests - a.memory - a.redis - a.loads
	if n := len(latencies); n > 0 {
		a.p50, a.p99 = latencies[n/2], latencies[n*99/100]
	}
	return a
}

// together calls f for each i below n, in order, on this number of goroutines. It ends at the first
// error or with ctx.
func together(
	ctx context.Context, goroutines, n int, next *atomic.Int64, f func(ctx context.Context, i int) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1) - 1); i < n && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
