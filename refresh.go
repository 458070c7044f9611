package cacheaside

import (
	"cmp"
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/rows"
)

// Refresh loads the value of key now, whatever is cached, stores it and returns it. The load begins
// after Refresh is called; Gets meanwhile are served what is cached. If another process is loading
// the key, Refresh first waits for that load. Refreshes of a key that are called while one is under
// way share the next.
//
// Use Refresh for a change that no Invalidate has announced. Refresh announces nothing either: the
// memory of other processes may serve the former value until its MemoryTTL. After a write, use
// Invalidate: a Refresh whose process is killed leaves what was cached. If the row is gone, Refresh
// stores that, and returns ErrNotFound. If Redis cannot be asked, or is lost before the value is
// stored, Refresh returns ErrRedis. While the key is on hold (Options.ReplicaLag) Refresh stores
// nothing, and a value that an Invalidate is just about to delete may still be read. Where
// invalidations keep coming between, the value is returned but not stored. The same goes for a
// value that is longer than LoaderOptions.MaxValueBytes, or whose key is on hold
// (Options.ReplicaLag, StrictWrites). If a load fails, what was cached stays. Its other errors are
// those of Get.
func (l *Loader[K, V]) Refresh(ctx context.Context, key K) (V, error) {
	key, err := l.own("refresh", key)
	if err != nil {
		return *new(V), err
	}
	ctx, end := l.observe(ctx, OpRefresh, 1)
	got, err := l.rows.Refresh(ctx, key)
	end(err)
	if err != nil {
		return *new(V), l.wrap("refresh", key, err)
	}
	return l.result(rows.Value[V](got.Value), got.Null)
}

// RefreshKeys is Loader.Refresh, without the values, for keys of any loaders, and tells the other
// processes: once it has returned nil, their memory serves the former values no longer than after
// an Invalidate. Keys that cannot be refreshed here are invalidated instead: keys whose loader this
// process does not have, or has of another version; keys whose texts it cannot read (as those of
// LoaderOptions.Key); keys whose values could not be stored; and whole loaders. A key whose row is
// gone is refreshed like any other.
//
// If some keys have failed, RefreshKeys returns a *BatchError[Key], with an *Error for each of
// them, whose causes are those of Refresh and Invalidate; the others are done. Keys that have
// failed may still be cached as they were. RefreshKeys may be repeated. It ends with ctx.
func (c *Cache) RefreshKeys(ctx context.Context, keys ...Key) error {
	keys, failed := c.accept("refresh", keys)
	parts, others := c.byLoader(keys)
	read := make([][]any, len(parts))
	for i, p := range parts {
		var unread []Key
		read[i], unread = p.read()
		others = append(others, unread...)
	}
	failed.joinAll(c.invalidateKeys(ctx, "refresh", others)) // first: loads may take long
	var stored, notStored []Key
	for i, p := range parts {
		for j, err := range p.loader.RefreshKeys(ctx, read[i]) {
			switch k := p.keys[j]; {
			case err == nil:
				stored = append(stored, k)
			case errors.Is(err, rows.ErrNotStored):
				notStored = append(notStored, k)
			default:
				failed.add("refresh", k, err)
			}
		}
	}
	failed.joinAll(c.invalidateKeys(ctx, "refresh", notStored))
	for i, err := range c.announce(ctx, stored) {
		failed.add("refresh", stored[i], err)
	}
	return failed.err()
}

// read answers the keys as the loader has them, and leaves p those that can be had so; unread are
// the others.
func (s *sameLoader) read() (read []any, unread []Key) {
	keys := s.keys
	s.keys = nil
	for _, k := range keys {
		if key, ok := s.loader.KeyOf(cmp.Or(k.Version, "1"), k.Text); ok {
			read, s.keys = append(read, key), append(s.keys, k)
		} else {
			unread = append(unread, k)
		}
	}
	return read, unread
}

// announce tells other processes of keys that have been stored anew.
func (c *Cache) announce(ctx context.Context, keys []Key) []error {
	if c.bus == nil || len(keys) == 0 {
		return nil
	}
	names, hashes := c.named(keys)
	errs := c.bus.Do(ctx, names, hashes, nil)
	for i, err := range errs {
		if err == nil {
			continue
		}
		errs[i] = redisError(err)
		if l := c.known(keys[i].Loader); l != nil {
			l.Counts().Fetch.RedisErrors.Add(1)
		}
	}
	return errs
}
