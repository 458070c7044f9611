package cacheaside

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// Warm fills the caches ahead of traffic, and keeps them filled if it is called on a schedule. It
// loads keys that are not cached, or whose entry has less than half of the loader's TTL left, and
// leaves the others alone. So processes that warm the same keys share the work, and each has them
// in its memory tier afterwards. (A key that two processes reload at the same moment is loaded by
// both, one after the other.) At most rate rows a second are loaded, in chunks of a quarter of
// rate; zero or less: as many as there are, one chunk of LoaderOptions.BatchSize after the other. A
// key whose load failed a moment ago is not tried again, but reported with ErrLoadFailed.
//
// Warm returns when all keys are done, ctx ends, or the cache is closed. each, unless nil, is
// called for each key, on the caller's goroutine: with nil when the key is cached, else with the
// *Error why it is not. A key that comes twice in a chunk is reported once. An absent row is cached
// as such: no error. The keys of the chunk that is next or under way when ctx ends are reported
// with ctx's error. If Warm did not come to the end, it returns ctx's error or ErrClosed; else, if
// some keys could not be cached, an error that says how many, and wraps that of one of them.
//
//	err := users.Warm(ctx, slices.Values(popular), 100, nil)
func (l *Loader[K, V]) Warm(ctx context.Context, keys iter.Seq[K], rate float64, each func(K, error)) error {
	size := l.options.BatchSize
	if rate > 0 {
		size = max(1, int(min(float64(size), rate/4))) // so that a second's rows do not come all at once
	}
	next, all, bad := time.Now(), 0, 0
	var one error
	for chunk := range rows.Chunks(keys, size) {
		fetch.Pause(ctx, time.Until(next))
		failed, loaded := l.warm(ctx, chunk)
		if rate > 0 {
			next = time.Now().Add(time.Duration(float64(loaded) / rate * float64(time.Second)))
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
				err = l.wrap("warm", key, flight.ErrNotEqual)
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
			return fmt.Errorf("cacheaside: warm %s: %w", l.name, stopped)
		}
	}
	if bad > 0 {
		return fmt.Errorf("cacheaside: warm %s: %d of %d keys could not be cached, one of them: %w", l.name, bad, all, one)
	}
	return nil
}

// warm brings one chunk of keys into the caches. It returns the errors, and how many keys had to be
// loaded.
func (l *Loader[K, V]) warm(ctx context.Context, keys []K) (errs map[K]error, loaded int) {
	all, errs := l.batch("warm", keys)
	failed := failures[K, V]{l, "warm", errs}
	loaded = l.rows.Warm(ctx, all.Own, failed.adder(all))
	return failed.errs, loaded
}
