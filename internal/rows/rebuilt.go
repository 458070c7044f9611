package rows

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/source"
)

const (
	maxReturned = 1000 // keys that a loader remembers for its filter
	returnedFor = time.Hour
)

// holds reports for each of keys whether a filter may hold it.
type holds = func(ctx context.Context, keys []string) ([]bool, error)

// rebuiltFilter is a Filter whose answers may be replaced all at once.
type rebuiltFilter interface {
	CheckRebuilt(check func(ctx context.Context, listed []string, before time.Time, holds holds) (hidden int, err error)) (remove func())
}

// rebuilt is how a loader takes part in the check of its filter.
type rebuilt[K comparable] struct {
	returned *returned[K] // nil: the filter does not ask
	leave    func()       // ends that
}

// joinFilter has the filter ask for rows before it answers by a new build.
func (r *Reader[K, V]) joinFilter() {
	r.rebuilt.leave = func() {}
	if f, ok := r.options.Filter.(rebuiltFilter); ok {
		r.rebuilt.returned = &returned[K]{at: make(map[K]time.Time)}
		r.rebuilt.leave = f.CheckRebuilt(r.checkRebuilt)
	}
}

// checkRebuilt returns how many rows a filter would hide that loads have returned within the last
// hour, and before a time, unless that is zero. It loads the rows that the filter lacks, because
// rows that were deleted do not count, and stops at the first that exist. listed are some keys of
// the filter's source: keys that may be other spellings of these do not count.
func (r *Reader[K, V]) checkRebuilt(ctx context.Context, listed []string, before time.Time, holds holds) (hidden int, err error) {
	missing, of, err := r.missing(ctx, before, holds)
	if err != nil {
		return 0, fmt.Errorf("loader %s: %w", r.options.Fetch.Name, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.life, func() { cancel(fault.Closed) })()
	missing = r.withoutSpellings(ctx, missing, of, listed)
	for part := range slices.Chunk(missing, r.chunk()) {
		var there []K
		for i, row := range r.LoadAlone(ctx, part, source.Call{Background: true}) {
			switch {
			case r.life.Err() != nil:
				return 0, nil // nobody reads by this loader any more
			case row.Err != nil:
				return 0, fmt.Errorf("loader %s: loading a row that the filter lacks: %w", r.options.Fetch.Name, row.Err)
			case !row.Null:
				there = append(there, part[i])
			}
		}
		if len(there) > 0 {
			text, _ := r.Keys.Text(there[0]) // it had one when it was asked for
			return len(there), fmt.Errorf("loader %s: #%016x is there, and the filter lacks it; of %d rows that loads have returned it lacks %d", r.options.Fetch.Name, r.Keys.Hash(text), of, len(missing))
		}
	}
	return 0, nil
}

// missing returns the keys of returned rows that the filter lacks, and of how many.
func (r *Reader[K, V]) missing(ctx context.Context, before time.Time, holds holds) (missing []K, of int, err error) {
	keys := r.rebuilt.returned.between(time.Now().Add(-returnedFor), before)
	if len(keys) == 0 {
		return nil, 0, nil
	}
	texts := make([]string, len(keys))
	for i, key := range keys {
		if texts[i], err = r.Keys.Text(key); err != nil {
			return nil, 0, err
		}
	}
	has, err := holds(ctx, texts)
	if err == nil && len(has) != len(texts) {
		err = fetch.ErrFilterLength
	}
	if err != nil {
		return nil, 0, err
	}
	for i, key := range keys {
		if !has[i] {
			missing = append(missing, key)
		}
	}
	return missing, len(keys), nil
}

// returned is some of the keys whose rows loads have returned, and when. A nil one remembers
// nothing.
type returned[K comparable] struct {
	mu sync.Mutex
	at map[K]time.Time
}

// note remembers the keys of rows that a load has returned, in the place of any others where there
// are too many, and forgets those that have turned out to have no row.
func note[K comparable](r *returned[K], keys []K, rows []source.Row) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, key := range keys {
		switch {
		case rows[i].Err != nil || key != key: //nolint:staticcheck // NaN, which could not be removed
		case rows[i].Null:
			delete(r.at, key)
		default:
			r.at[key] = rows[i].Began
			for other := range r.at {
				if len(r.at) <= maxReturned {
					break
				}
				if other != key {
					delete(r.at, other)
				}
			}
		}
	}
}

// between returns the keys whose rows were read after then and, unless before is zero, before that.
// It forgets those that were read earlier.
func (r *returned[K]) between(then, before time.Time) (keys []K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, at := range r.at {
		switch {
		case at.Before(then):
			delete(r.at, key)
		case before.IsZero() || at.Before(before):
			keys = append(keys, key)
		}
	}
	return keys
}
