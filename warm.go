package cacheaside

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Warm fills the caches before they are used, and keeps them filled if it is called on a
// schedule. It loads keys that are not cached, or whose entry has less than half of the loader's
// TTL left. Processes that warm the same keys share the work, and each has all of them in its
// memory tier afterwards. (A key that two processes reload at the same moment is loaded by both,
// one after the other.)
//
// Warm loads at most perSecond rows per second, in chunks of a quarter of it. If perSecond is zero
// or less, it loads one chunk of LoaderOptions.BatchSize after the other without a pause. A key
// whose load has just failed is not loaded, but reported with ErrLoadFailed. Keys that are not
// loaded, because they are cached or because Redis is down, do not count toward perSecond.
//
// Warm returns when all keys have been processed, ctx ends, or the cache is closed. Unless each
// is nil, it is called for each key, on the caller's goroutine: with nil if the key is cached,
// otherwise with an *Error that says why not. A key that occurs twice in a chunk is reported
// once. An absent row is cached as such, and is not an error. When ctx ends, the keys of the
// current or next chunk are reported with ctx's error. If Warm stops early, it returns ctx's
// error or ErrClosed. Otherwise, if some keys could not be cached, it returns an error with their
// number that wraps one of their errors.
//
//	err := users.Warm(ctx, slices.Values(popular), 100, nil)
func (l *Loader[K, V]) Warm(ctx context.Context, keys iter.Seq[K], perSecond float64, each func(K, error)) error {
	size := l.options.BatchSize
	if perSecond > 0 {
		size = max(1, int(min(float64(size), perSecond/4))) // spreads the rows over the second
	}
	next, all, bad := time.Now(), 0, 0
	var one error
	for chunk := range rows.Chunks(keys, size) {
		_ = retry.Sleep(ctx, time.Until(next))
		failed, loads := l.warm(ctx, chunk)
		if perSecond > 0 {
			next = time.Now().Add(time.Duration(float64(loads) / perSecond * float64(time.Second)))
		}
		var stopped error
		switch {
		case len(failed) == 0:
		case ctx.Err() != nil:
			stopped = ctx.Err()
		case l.rows.Closed():
			stopped = ErrClosed
		}
		for _, key := range chunk {
			err := failed[key]
			if key != key { //nolint:gocritic // no map finds it
				err = l.wrap(OpWarm, key, flight.ErrNotEqual)
			}
			if all++; err != nil {
				bad++
				one = cmp.Or(one, err)
			}
			if each != nil {
				each(key, err)
			}
		}
		if stopped != nil {
			return wording.Errorf("cacheaside: warm %s: %w", l.name, stopped)
		}
	}
	if bad > 0 {
		return wording.Errorf("cacheaside: warm %s: %d of %d keys could not be cached, one of them: %w", l.name, bad,
			all, one)
	}
	return nil
}

// warm loads one chunk of keys into the caches. It returns the errors of keys, and the number of
// rows that it has loaded, or tried to load.
func (l *Loader[K, V]) warm(ctx context.Context, keys []K) (errs map[K]error, loads int) {
	all, errs := l.batch(OpWarm, keys)
	failed := failures[K, V]{l, OpWarm, errs}
	loads = l.rows.Warm(ctx, all.Canonical, failed.adder(all))
	return failed.errs, loads
}
