package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// InvalidateKeys is Loader.Invalidate for keys of any loaders, also of loaders that this process
// does not have: for a program that only writes, or that repeats invalidations that another could
// not do. Its promises are the same; all keys go in one trip to each server. A Key of a whole
// loader is Loader.InvalidateAll, with the promises of that.
//
// If some keys have failed it returns a *BatchError[Key], with an *Error for each of them; the
// others are done. The causes are those of Invalidate, or what Key.Check says. InvalidateKeys may
// be repeated. It ends with ctx, or after four times Options.RedisTimeout. It counts in the Stats
// of those loaders that this process has. No keys are no error.
func (c *Cache) InvalidateKeys(ctx context.Context, keys ...Key) error {
	return c.invalidateKeys(ctx, "invalidate", keys).err()
}

func (c *Cache) invalidateKeys(ctx context.Context, op string, keys []Key) keyErrors {
	keys, failed := c.accept(op, keys)
	for k, err := range failed {
		if l := c.known(k.Loader); l != nil && !errors.Is(err, ErrClosed) {
			l.Counts().Fetch.InvalidateErrors.Add(1)
		}
	}
	whole := slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return !k.All })
	single := slices.DeleteFunc(keys, func(k Key) bool { return k.All })
	wholeErrs := make([]error, len(whole))
	var others sync.WaitGroup
	for i, k := range whole {
		others.Go(func() { wholeErrs[i] = c.invalidateAll(ctx, k.Loader) })
	}
	for i, err := range c.invalidateSingle(ctx, single) {
		failed.add(op, single[i], err)
	}
	others.Wait()
	for i, err := range wholeErrs {
		failed.add(op, whole[i], err)
	}
	return failed
}

// accept returns each of keys once, in their order, and which of them are refused: those that
// cannot be keys; all, if the cache is closed.
func (c *Cache) accept(op string, keys []Key) (accepted []Key, refused keyErrors) {
	closed := c.isClosed()
	accepted, refused = make([]Key, 0, len(keys)), make(keyErrors)
	seen := make(map[Key]struct{}, len(keys))
	for _, k := range keys {
		if _, again := seen[k]; again {
			continue
		}
		seen[k] = struct{}{}
		err := k.flaw()
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

// invalidateSingle returns an error for each key, nil for those that are done.
func (c *Cache) invalidateSingle(ctx context.Context, keys []Key) []error {
	if len(keys) == 0 {
		return nil
	}
	ctx, end := c.observe(ctx, OpInvalidate, c.observed(keys), len(keys))
	errs := c.changeSingle(keys, func(names []string, hashes []uint64) []error { return c.delete(ctx, names, hashes) })
	end(errors.Join(errs...))
	return errs
}

// changeSingle does so by send.
func (c *Cache) changeSingle(keys []Key, send func(names []string, hashes []uint64) []error) []error {
	names, hashes := c.named(keys)
	answers := inOrder(func() []error { return send(names, hashes) }, func() {
		for i, k := range keys {
			c.forget(k, hashes[i])
		}
	})
	errs := make([]error, len(keys))
	for i, k := range keys {
		if answers != nil && answers[i] != nil { // nil: there is no Redis
			errs[i] = redisError(answers[i])
		}
		if errs[i] == nil {
			c.wrote(func() measure.Written { return c.written(k, hashes[i]) })
		}
		l := c.known(k.Loader)
		switch {
		case l == nil:
			c.stranger(k.Loader)
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
func (c *Cache) named(of []Key) (names []string, hashes []uint64) {
	names, hashes = make([]string, len(of)), make([]uint64, len(of))
	for i, k := range of {
		n := keys.NewNamespace(c.options.Prefix, k.Loader, cmp.Or(k.Version, "1"))
		names[i], _ = n.Name(k.Text)
		hashes[i] = n.Hash(k.Text)
	}
	return names, hashes
}

// forget is Reader.Forget without the loader's K, and so without the place of the key's item in
// memory: the memory version of the key ends it. The version is raised for unknown loaders, too:
// one of them may be made just now.
func (c *Cache) forget(k Key, hash uint64) {
	if c.memory != nil {
		c.memory.Forget(hash)
	}
	if l := c.known(k.Loader); l != nil {
		l.ForgetFailure(k.Text)
	}
}

// sameLoader is the single keys of a call that are of one loader.
type sameLoader struct {
	loader *rows.Core
	keys   []Key
}

// byLoader divides keys by their loaders; others are those of whole loaders, and of loaders that
// this process does not have.
func (c *Cache) byLoader(keys []Key) (parts []*sameLoader, others []Key) {
	at := make(map[string]*sameLoader)
	for _, k := range keys {
		l := c.known(k.Loader)
		if l == nil || k.All {
			others = append(others, k)
			continue
		}
		if at[k.Loader] == nil {
			at[k.Loader] = &sameLoader{loader: l}
			parts = append(parts, at[k.Loader])
		}
		at[k.Loader].keys = append(at[k.Loader].keys, k)
	}
	return parts, others
}
