// Package rows reads the rows of one loader, by keys and values of its types: from memory, or by
// package fetch, which knows no types. It is the part of a cacheaside.Loader that nobody outside
// sees.
package rows

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// Shared is what the loaders of a cache share.
type Shared struct {
	*fetch.Shared
	Memory   *memory.Tier // nil: there is none
	Limit    *limit.Limit
	MaxLoads int // of all loaders at once; 0 or less: any number
	MaxQueue int
	Inform   func(what, loader string)
	Panicked func(error) (value any, ok bool) // whether an error is of Shared.Caught, and of which panic
}

// Options are those of one loader.
type Options[K comparable, V any] struct {
	Fetch fetch.Options // as far as cacheaside.LoaderOptions has its fields, and Name; the Reader sets the others
	Keys  Keys[K]
	Codec *codec.Codec[V]

	Load    func(ctx context.Context, keys []K) (map[K]V, error)
	Failed  func(error) (errs map[K]error, partial bool) // the errors of single keys in an error of Load
	Version string                                       // LoaderOptions.Version
	Batch   bool                                         // Load is for many keys
	Weight  func(V) int64                                // LoaderOptions.Weight, or nil

	BatchSize, MaxLoads int
	BreakAt             float64
	BreakFor            time.Duration
	NotFound            func(error) bool
	Shadow              float64
	Filter              Filter // nil: none
}

// Reader reads the rows of a loader. It is safe for concurrent use.
type Reader[K comparable, V any] struct {
	Keys     Keys[K]
	Counters fetch.Counters
	Source   *source.Source // calls the load function
	Shadow   *audit.Shadow  // nil: callers are answered by the caches
	Fetch    *fetch.Fetcher // reads the keys that memory does not answer
	Groups   Groups[K]

	cache   *Shared
	options Options[K, V]
	memory  processMemory[K, V]
	rebuilt rebuilt[K] // rows that a filter is asked for once it was rebuilt
	life    context.Context
	stop    context.CancelCauseFunc
}

// New makes a Reader.
func New[K comparable, V any](cache *Shared, o Options[K, V]) *Reader[K, V] {
	r := &Reader[K, V]{Keys: o.Keys, cache: cache, options: o}
	r.life, r.stop = context.WithCancelCause(context.Background())
	r.memory.use(cache, &o.Fetch)
	r.Source = r.newSource()
	if o.Shadow > 0 {
		r.Shadow = audit.NewShadow(o.Shadow, r.Counters.BackgroundRefreshes.Load)
		r.memory.bypass.Or(shadowing)
	}
	r.Fetch = r.newFetcher()
	r.Groups = r.newGroups()
	r.joinFilter()
	return r
}

// Counts are what a Reader counts.
type Counts struct {
	Fetch  *fetch.Counters
	Source *source.Counters
	Shadow *audit.Shadow // nil: there is none
	Broken bool          // the circuit breaker is open
}

// Counts returns the counters.
func (r *Reader[K, V]) Counts() Counts {
	return Counts{&r.Counters, &r.Source.Counters, r.Shadow, r.Source.Broken()}
}

// Closed reports whether the cache was closed.
func (r *Reader[K, V]) Closed() bool { return r.Groups.Plain.Closed() }

// Close ends all reads with fault.Closed, and waits for their end.
func (r *Reader[K, V]) Close() {
	r.rebuilt.leave()
	r.Fetch.Stop()
	r.Shadow.Close()
	r.stop(fault.Closed)
	var wg sync.WaitGroup
	for _, g := range r.Groups.all() {
		wg.Go(func() { g.Close(fault.Closed) })
	}
	wg.Wait()
	r.Shadow.Wait()
	r.Fetch.Wait()
}

// Bypass switches the caches off, or on again.
func (r *Reader[K, V]) Bypass(on bool) {
	if on {
		r.memory.bypass.Or(bypassing)
	} else {
		r.memory.bypass.And(^uint32(bypassing))
	}
}

// Bypassed reports whether the caches are off.
func (r *Reader[K, V]) Bypassed() bool { return r.memory.bypass.Load()&bypassing != 0 }

// Get reads the row of a key that Remembered does not have.
func (r *Reader[K, V]) Get(ctx context.Context, how fetch.How, key K) (*fetch.Round, error) {
	if r.Shadow != nil {
		return r.getStraight(ctx, how, key)
	}
	r.Counters.Misses.Add(1)
	got, err := r.Groups.of(how).Do(ctx, key)
	if err != nil {
		return r.orCopy(ctx, how, key, err)
	}
	return got, nil
}

// orCopy is for a load that has asked for a key whose load waits for it, as for its own, while
// others read that key, too: it would wait in vain for what they get. Alone it would have been
// given the copy that is cached. So orCopy returns that copy, if there is one, and else what
// orApart does. Any other error it returns as it is.
func (r *Reader[K, V]) orCopy(ctx context.Context, how fetch.How, key K, err error) (*fetch.Round, error) {
	if copied := r.copyFor(ctx, how, key, err); copied != nil {
		return copied, nil
	}
	return r.orApart(ctx, key, err)
}

// copyFor returns the copy that orCopy returns, or nil.
func (r *Reader[K, V]) copyFor(ctx context.Context, how fetch.How, key K, err error) *fetch.Round {
	if how != fetch.Plain || !errors.Is(err, fault.LoadCycle) {
		return nil
	}
	item, ok, _ := r.Peek(ctx, key)
	if !ok {
		return nil
	}
	return &fetch.Round{Result: fetch.Result{Value: item.Value, Null: item.Null, Hit: true}}
}

// GetMany is Get for many keys. It calls got for the index of each key that has succeeded, and
// failed for the others.
func (r *Reader[K, V]) GetMany(ctx context.Context, how fetch.How, keys []K, got func(int, *fetch.Round), failed func(int, error)) {
	if r.Shadow != nil {
		r.getManyStraight(ctx, how, keys, got, failed)
		return
	}
	r.Counters.Misses.Add(int64(len(keys)))
	var apart []int
	orApart := r.unlessApart(ctx, keys, &apart, failed)
	many(ctx, r.Groups.of(how), keys, got, func(i int, err error) {
		if copied := r.copyFor(ctx, how, keys[i], err); copied != nil {
			got(i, copied)
		} else {
			orApart(i, err)
		}
	})
	r.getApart(ctx, keys, apart, got, failed)
}

// Refresh loads a row anew.
func (r *Reader[K, V]) Refresh(ctx context.Context, key K) (*fetch.Round, error) {
	return r.Groups.Refreshes.Do(ctx, key)
}

// RefreshMany is Refresh for many keys.
func (r *Reader[K, V]) RefreshMany(ctx context.Context, keys []K, got func(int, *fetch.Round), failed func(int, error)) {
	many(ctx, r.Groups.Refreshes, keys, got, failed)
}

// many waits for a round of each key.
func many[K comparable](ctx context.Context, g *Group[K], keys []K, got func(int, *fetch.Round), failed func(int, error)) {
	if len(keys) == 0 {
		return
	}
	rounds, errs := g.DoMany(ctx, keys)
	for i, r := range rounds {
		err := errs[i]
		if err == nil {
			err = r.Err
		}
		if err != nil {
			failed(i, err)
		} else {
			got(i, &r.Result)
		}
	}
}

// manyAt is many for the keys at these places.
func manyAt[K comparable](ctx context.Context, g *Group[K], keys []K, places []int, got func(int, *fetch.Round), failed func(int, error)) {
	part := make([]K, len(places))
	for i, at := range places {
		part[i] = keys[at]
	}
	many(ctx, g, part, func(i int, of *fetch.Round) { got(places[i], of) }, func(i int, err error) { failed(places[i], err) })
}
