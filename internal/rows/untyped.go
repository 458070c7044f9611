package rows

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/fetch"
)

// ErrNotStored is the error of a value that was loaded and could not be stored.
var ErrNotStored = errors.New("loaded, but not stored")

// KeyOf is the K of a text, if this loader reads keys of that version, and texts of its keys can be
// read.
func (r *Reader[K, V]) KeyOf(version, text string) (key any, ok bool) {
	if r.Keys.Parse == nil || version != r.options.Version {
		return nil, false
	}
	return r.Keys.Parse(text)
}

// RefreshKeys is Refresh of keys that KeyOf has returned. The error of a value that could not be
// stored is ErrNotStored.
func (r *Reader[K, V]) RefreshKeys(ctx context.Context, keys []any) []error {
	typed := make([]K, len(keys))
	for i, key := range keys {
		typed[i] = key.(K)
	}
	errs := make([]error, len(keys))
	r.RefreshMany(ctx, typed, func(i int, got *fetch.Round) {
		if got.Unvalidated {
			errs[i] = ErrNotStored
		}
	}, func(i int, err error) { errs[i] = err })
	return errs
}
