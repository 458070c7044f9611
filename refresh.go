package cacheaside

import (
	"cmp"
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/rows"
)

// Refresh loads the value of key even if it is cached, stores it and returns it. The load begins
// after the call of Refresh. Concurrent Gets are served the cached value. If another process is
// loading the key, Refresh first waits for that load. Calls during a Refresh of the key share the
// next one.
//
// Use Refresh after a change without an Invalidate. It notifies the other processes: after it has
// returned nil, their memory serves the old value no longer than after an Invalidate. After a
// write, use Invalidate, because the old value stays cached if a process is killed during its
// Refresh.
//
// If the row does not exist, Refresh stores its absence, and returns ErrNotFound. If Redis is down,
// or fails before the value is stored and announced, Refresh returns ErrRedis. If the load fails,
// the cached value stays. The other errors are those of Get.
//
// The value is returned but not stored if the key is on hold (Options.ReplicaLag, StrictWrites),
// if its encoding is longer than LoaderOptions.MaxValueBytes, or if invalidations keep overtaking
// the load. While a key is on hold, Refresh may return a value that an Invalidate is about to
// delete.
func (l *Loader[K, V]) Refresh(ctx context.Context, key K) (V, error) {
	key, err := l.canonical(OpRefresh, key)
	if err != nil {
		return *new(V), err
	}
	ctx, end := l.observe(ctx, OpRefresh, 1)
	got, err := l.rows.Refresh(ctx, key)
	end(err)
	if err != nil {
		return *new(V), l.wrap(OpRefresh, key, err)
	}
	return l.result(rows.Value[V](got.Value), got.Null)
}

// RefreshKeys is Loader.Refresh for keys of any loaders, without the values. A key whose row does
// not exist is refreshed like any other. These keys are invalidated instead:
//
//   - keys whose loader this process does not have, or has with another version;
//   - keys whose texts this process cannot convert back, such as those of LoaderOptions.Key;
//   - keys whose values could not be stored;
//   - whole loaders and groups.
//
// If some keys have failed, the error is a *BatchError[Key] with an *Error for each of them,
// whose causes are those of Refresh and Invalidate; the other keys are refreshed or invalidated.
// The old values of failed keys may still be cached. RefreshKeys may be repeated. It ends with
// ctx.
func (c *Cache) RefreshKeys(ctx context.Context, keys ...Key) error {
	keys, failed := c.accept(OpRefresh, keys)
	parts, others := c.byLoader(keys)
	converted := make([][]any, len(parts))
	for i, p := range parts {
		var unconverted []Key
		converted[i], unconverted = p.convert()
		others = append(others, unconverted...)
	}
	failed.joinAll(c.invalidateKeys(ctx, OpRefresh, others)) // first: loads may take long
	var notStored []Key
	for i, p := range parts {
		for j, err := range p.loader.RefreshKeys(ctx, converted[i]) {
			switch k := p.keys[j]; {
			case err == nil:
			case errors.Is(err, rows.ErrNotStored):
				notStored = append(notStored, k)
			default:
				failed.add(OpRefresh, k, err)
			}
		}
	}
	failed.joinAll(c.invalidateKeys(ctx, OpRefresh, notStored))
	return failed.err()
}

// convert converts the keys to the type of the loader. It keeps in p the keys that could be
// converted, in the order of converted, and returns the others.
func (p *part) convert() (converted []any, others []Key) {
	keys := p.keys
	p.keys = nil
	for _, k := range keys {
		if key, ok := p.loader.KeyOf(cmp.Or(k.Version, "1"), k.Text); ok {
			converted, p.keys = append(converted, key), append(p.keys, k)
		} else {
			others = append(others, k)
		}
	}
	return converted, others
}
