package cacheaside

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/measure"
)

// Invalidate removes keys from Redis and from this process's memory, after their rows have changed:
// commit, then Invalidate. Once Invalidate has returned nil, no value that was read from the
// database before is stored anywhere, whatever was under way. (Other processes are told in the same
// trip; their memory may have such a value for some milliseconds, and never serves it later than
// Options.MaxStaleness.)
//
// A row that feeds several loaders needs the Invalidate of each. If Commit itself fails without a
// clear answer, as when the connection is lost, the row may have changed: Invalidate then, too.
//
// If Invalidate returns an error, some keys may still be cached as they were. The *Errors in it
// (one, or joined) tell which; their causes are ErrRedis and the client's error, or ctx's error.
// Repeat the Invalidate, not the write. Invalidate ends with ctx, and after four times
// Options.RedisTimeout if ctx has no deadline, or a later one. After a write has been committed, do
// not pass a ctx that the user's departure cancels: use context.WithoutCancel.
func (l *Loader[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	return l.invalidate(ctx, "invalidate", keys)
}

func (l *Loader[K, V]) invalidate(ctx context.Context, op string, keys []K) error {
	return l.change(ctx, op, keys, l.cache.delete, l.rows.Forget)
}

// delete deletes keys in Redis, puts them on hold if need be, and tells the other processes.
func (c *Cache) delete(ctx context.Context, names []string, hashes []uint64) []error {
	c.holds.Set(hashes) // nil with Redis, which has its own holds. Before memory forgets the keys: see Fetcher.onHold
	if c.store == nil {
		return nil
	}
	return c.bus.Delete(ctx, names, hashes)
}

const expireOp = "expire"

// Expire ends the freshness of keys, as if their TTLs had passed: the soft verb beside Invalidate.
// Cached values stay. They are served while the first read of each has it loaded again in the
// background, or while that fails (see LoaderOptions.StaleFor and SoftTimeout). A value that was
// read from the database before the call no longer counts as fresh: a load that is running is done
// again. Other processes are told as by Invalidate. Use Expire for changes that should show soon,
// but of which nobody must be sure; use Invalidate for values that must not be served any more.
// Where StaleFor is negative, Expire is Invalidate. It puts nothing on hold for Options.ReplicaLag,
// but the keys that it has expired are reloaded with PreferPrimary. Its errors are those of
// Invalidate.
func (l *Loader[K, V]) Expire(ctx context.Context, keys ...K) error {
	if l.options.StaleFor < 0 {
		return l.Invalidate(ctx, keys...)
	}
	return l.change(ctx, expireOp, keys, func(ctx context.Context, names []string, hashes []uint64) []error {
		if l.cache.store == nil {
			return nil
		}
		return l.cache.bus.Do(ctx, names, hashes, lease.Expire)
	}, l.rows.Expire)
}

// change changes keys in Redis, by send, and then in memory, by forget.
func (l *Loader[K, V]) change(ctx context.Context, op string, keys []K, send func(ctx context.Context, names []string, hashes []uint64) []error, forget func(K, string)) error {
	if l.rows.Closed() {
		return l.wrapAll(op, keys, ErrClosed)
	}
	ctx, end := l.observe(ctx, OpInvalidate, len(keys))
	var errs []error
	defer func() { end(errors.Join(errs...)) }()
	own, counters := &l.rows.Keys, &l.rows.Counters
	n := len(keys)
	valid, texts, names, hashes := make([]K, 0, n), make([]string, 0, n), make([]string, 0, n), make([]uint64, 0, n)
	for _, key := range keys {
		key, text, err := own.Named(key)
		if err != nil {
			errs = append(errs, l.wrapText(op, "", err))
			continue
		}
		name, _ := own.Name(text)
		valid, texts, names, hashes = append(valid, key), append(texts, text), append(names, name), append(hashes, own.Hash(text))
	}
	for i, err := range inOrder(func() []error { return send(ctx, names, hashes) }, func() {
		for i, key := range valid {
			forget(key, texts[i])
		}
	}) {
		if err != nil {
			counters.RedisErrors.Add(1)
			errs = append(errs, l.wrap(op, valid[i], redisError(err)))
		} else if op != expireOp { // what was expired may be served
			l.cache.wrote(func() measure.Written { return measure.Written{Loader: l.name, Hash: hashes[i], Key: &valid[i]} })
		}
	}
	counters.InvalidateErrors.Add(int64(len(errs)))
	counters.Invalidated.Add(int64(len(keys) - len(errs)))
	return errors.Join(errs...)
}

// inOrder changes keys in Redis, by send, and then in memory: before, a reader would fill memory
// again from there. Keys that Redis has not acknowledged are forgotten, too.
func inOrder(send func() []error, forget func()) []error {
	errs := send()
	forget()
	return errs
}

// InvalidateAll removes all keys of this loader, of every Version, from Redis and from memory, at
// the cost of one command (one for each of 16 ranges of keys on a cluster), however many there are.
// Entries stay where they are until they are read, overwritten or expire, but they are served no
// more.
//
// After InvalidateAll has returned nil, no Get in this process that starts then receives a value
// that was read before, nor does any Get in another process that starts more than
// Options.MaxStaleness later. As a rule other processes learn of it at once. That is less than
// Invalidate promises: use InvalidateAll for changes of many rows, as after an import, not for one.
// If it returns an error, the loader may have been invalidated in part, or in whole; try again.
func (l *Loader[K, V]) InvalidateAll(ctx context.Context) error {
	err := error(ErrClosed)
	if !l.rows.Closed() {
		err = l.cache.invalidateAll(ctx, l.name)
	}
	if err != nil {
		return l.AllKeys().wrap("invalidate", err)
	}
	return nil
}

// invalidateAll outdates the keys of a loader, which this process may not have.
func (c *Cache) invalidateAll(ctx context.Context, name string) error {
	l := c.known(name)
	if c.bus == nil {
		if l != nil {
			l.Raise(0, 0)
		}
		return nil
	}
	known := ""
	if l != nil {
		known = name
	}
	ctx, end := c.observe(ctx, OpInvalidate, known, 1)
	err := c.bus.DeleteLoader(ctx, name)
	end(err)
	if err == nil {
		return nil
	}
	if l != nil {
		l.ForgetAll()
		l.Counts().Fetch.RedisErrors.Add(1)
		l.Counts().Fetch.InvalidateErrors.Add(1)
	}
	return redisError(err)
}
