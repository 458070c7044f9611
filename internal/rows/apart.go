package rows

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
)

// A row of a batch may need another row of the same batch. Its load asks for that row while the
// batch is being loaded, and would wait for itself. Such a row is loaded apart: once more, in a
// call for its key alone, without a lease and without being stored.

// orApart reads key apart if err is that its read must not be waited for, and if it may be read so.
// Otherwise it returns err.
func (r *Reader[K, V]) orApart(ctx context.Context, key K, err error) (*fetch.Round, error) {
	if !r.mayLoadApart(ctx, key, err) {
		return nil, err
	}
	got, err := r.Groups.Apart.Do(ctx, key)
	if err == nil {
		r.Counters.Unvalidated.Add(1)
	}
	return got, err
}

// mayLoadApart reports whether a key may be read apart. An err that only wraps fault.LoadCycle is
// of a load that this one has asked for.
func (r *Reader[K, V]) mayLoadApart(ctx context.Context, key K, err error) bool {
	if err != fault.LoadCycle || r.Groups.Apart == nil { //nolint:errorlint // see above
		return false
	}
	text, err := r.Keys.Text(key)
	return err == nil && r.Source.MayLoadApart(ctx, text)
}

// unlessApart returns a failed that collects the indexes of the keys that may be read apart.
func (r *Reader[K, V]) unlessApart(ctx context.Context, keys []K, apart *[]int, failed func(int, error)) func(int, error) {
	return func(i int, err error) {
		if r.mayLoadApart(ctx, keys[i], err) {
			*apart = append(*apart, i)
		} else {
			failed(i, err)
		}
	}
}

// getApart reads apart the keys at these places.
func (r *Reader[K, V]) getApart(ctx context.Context, keys []K, places []int, got func(int, *fetch.Round), failed func(int, error)) {
	if len(places) == 0 {
		return
	}
	manyAt(ctx, r.Groups.Apart, keys, places, func(i int, of *fetch.Round) {
		r.Counters.Unvalidated.Add(1)
		got(i, of)
	}, failed)
}
