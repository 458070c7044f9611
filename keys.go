package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// InvalidateKeys is Loader.Invalidate for keys of any loaders, including loaders that this process
// does not have. It is for programs that only write, or that repeat failed invalidations of others.
// The promises are the same. All keys are sent in one round trip to each server. A Key with All is
// invalidated as by Loader.InvalidateAll, and a Key with Group as by Loader.InvalidateGroup; the
// promises of these apply. 1,000 groups of a loader cost one command for each range of keys. All
// groups of a loader in one call fail together.
//
// If some keys have failed, the error is a *BatchError[Key] with an *Error for each of them; the
// other keys are invalidated. The causes are those of Invalidate, and the errors of Key.Check.
// InvalidateKeys may be repeated. It ends with ctx, and after at most four times
// Options.RedisTimeout. The keys count in the Stats of the loaders that this process has. A call
// without keys returns nil.
func (c *Cache) InvalidateKeys(ctx context.Context, keys ...Key) error {
	return c.invalidateKeys(ctx, OpInvalidate, keys).err()
}

func (c *Cache) invalidateKeys(ctx context.Context, op string, keys []Key) keyErrors {
	keys, failed := c.accept(op, keys)
	for k, err := range failed {
		if l := c.known(k.Loader); l != nil && !errors.Is(err, ErrClosed) {
			l.Counts().Fetch.InvalidateErrors.Add(1)
		}
	}
	parts := c.divide(keys)
	errs := make([]error, len(parts))
	var single []Key
	var others sync.WaitGroup
	for i, p := range parts {
		if p.keys[0].single() {
			single = append(single, p.keys...)
		} else {
			others.Go(func() { errs[i] = c.invalidatePart(ctx, p.keys) })
		}
	}
	for i, err := range c.invalidateSingle(ctx, op, single) {
		failed.add(op, single[i], err)
	}
	others.Wait()
	for i, p := range parts {
		failed.addAll(op, p.keys, errs[i])
	}
	return failed
}

// invalidatePart invalidates the keys of a part that are not single.
func (c *Cache) invalidatePart(ctx context.Context, keys []Key) error {
	if keys[0].All {
		return c.invalidateAll(ctx, keys[0].Loader)
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Text
	}
	return c.invalidateGroups(ctx, keys[0].Loader, names)
}

// accept removes duplicates from keys, and keeps their order. It returns the errors of the keys
// that are refused: invalid keys, or all keys if the cache is closed.
func (c *Cache) accept(op string, keys []Key) (accepted []Key, refused keyErrors) {
	closed := c.isClosed()
	accepted, refused = make([]Key, 0, len(keys)), make(keyErrors)
	seen := make(map[Key]struct{}, len(keys))
	for _, k := range keys {
		if _, again := seen[k]; again {
			continue
		}
		seen[k] = struct{}{}
		err := k.validate()
		if closed {
			err = ErrClosed
		}
		if err != nil {
			refused.add(op, k, err)
		} else {
			accepted = append(accepted, k)
		}
	}
	return accepted, refused
}

// invalidateSingle invalidates keys that are not whole loaders or groups. It returns an error for
// each key, which is nil if the key is invalidated.
func (c *Cache) invalidateSingle(ctx context.Context, op string, keys []Key) []error {
	if len(keys) == 0 {
		return nil
	}
	ctx, end := c.observe(ctx, OpInvalidate, c.observedName(keys), len(keys))
	errs := c.changeSingle(keys, func(names []string, hashes []uint64) []error { return c.delete(ctx, names, hashes) })
	failed := make(keyErrors)
	for i, err := range errs {
		failed.add(op, keys[i], err)
	}
	end(failed.err())
	return errs
}

// changeSingle changes keys in Redis, by send, and forgets them in memory. It returns an error
// for each key.
func (c *Cache) changeSingle(keys []Key, send func(names []string, hashes []uint64) []error) []error {
	names, hashes := c.named(keys)
	replies := inOrder(func() []error { return send(names, hashes) }, func() {
		for i, k := range keys {
			c.forget(k, hashes[i])
		}
	})
	errs := make([]error, len(keys))
	for i, k := range keys {
		if replies != nil && replies[i] != nil { // nil without Redis
			errs[i] = redisError(replies[i])
		}
		if errs[i] == nil {
			c.sample(func() measure.Written { return c.written(k, hashes[i]) })
		}
		l := c.known(k.Loader)
		switch {
		case l == nil:
			c.logUnknown(k.Loader)
		case errs[i] != nil:
			l.Counts().Fetch.RedisErrors.Add(1)
			l.Counts().Fetch.InvalidateErrors.Add(1)
		default:
			l.Counts().Fetch.Invalidated.Add(1)
		}
	}
	return errs
}

// named returns the names in Redis and the stable hashes of single keys.
func (c *Cache) named(ks []Key) (names []string, hashes []uint64) {
	names, hashes = make([]string, len(ks)), make([]uint64, len(ks))
	for i, k := range ks {
		n := keys.NewNamespace(c.options.Prefix, k.Loader, cmp.Or(k.Version, "1"))
		names[i], _ = n.Name(k.Text)
		hashes[i] = n.Hash(k.Text)
	}
	return names, hashes
}

// forget is Reader.Forget without the type K, so it cannot find the item of the key in memory.
// Raising the memory version of the key ends that item. The version is raised even if this
// process does not have the loader, because the loader may be created concurrently.
func (c *Cache) forget(k Key, hash uint64) {
	if c.memory != nil {
		c.memory.Forget(hash)
	}
	if l := c.known(k.Loader); l != nil {
		l.ForgetFailure(k.Text)
	}
}

// part contains the keys of a call that belong to one loader and are of one kind: single keys,
// groups, or the whole loader.
type part struct {
	loader *rows.Core // nil if this process does not have the loader
	keys   []Key
}

// divide divides keys into parts.
func (c *Cache) divide(keys []Key) (parts []*part) {
	byKind := make(map[Key]*part)
	for _, k := range keys {
		kind := Key{Loader: k.Loader, All: k.All, Group: k.Group}
		if byKind[kind] == nil {
			byKind[kind] = &part{loader: c.known(k.Loader)}
			parts = append(parts, byKind[kind])
		}
		byKind[kind].keys = append(byKind[kind].keys, k)
	}
	return parts
}

// byLoader returns the parts with single keys of loaders that this process has. others are all
// other keys.
func (c *Cache) byLoader(keys []Key) (parts []*part, others []Key) {
	for _, p := range c.divide(keys) {
		if p.loader == nil || !p.keys[0].single() {
			others = append(others, p.keys...)
		} else {
			parts = append(parts, p)
		}
	}
	return parts, others
}
