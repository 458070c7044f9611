package cacheaside

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// Invalidate removes keys from Redis and from the memory of this process. Call it after the
// change of their rows was committed. Once Invalidate has returned nil, Redis and this process's
// memory neither keep nor store a value that was read from the database before, even by a load in
// progress. Other processes are notified in the same round trip. Their memory may serve such a
// value for some milliseconds, and never later than Options.MaxStaleness.
//
// If a row feeds several loaders, call Invalidate of each. If Commit fails without a clear
// result, for example because the connection is lost, the row may have changed: also call
// Invalidate.
//
// If some keys have failed, the error is a *BatchError[K] with an *Error for each of them, which
// may still be cached; the other keys are invalidated. The causes are ErrRedis with the client's
// error, ctx's error, ErrClosed, and the error of a key without a text. Repeat the Invalidate,
// not the write. Invalidate ends with ctx, and after at most four times Options.RedisTimeout. More
// than 1,000 keys take several trips, of which each has that time. If Redis does not reply to one
// of them, the remaining keys are not sent. After a commit, do not pass a ctx that ends when the
// client disconnects: use context.WithoutCancel.
func (l *Loader[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	return batchError(l.invalidate(ctx, OpInvalidate, keys))
}

func (l *Loader[K, V]) invalidate(ctx context.Context, op string, keys []K) map[K]error {
	return l.change(ctx, op, keys, l.cache.delete, l.rows.Forget)
}

// delete deletes keys in Redis, puts them on hold if the options require it, and notifies the
// other processes.
func (c *Cache) delete(ctx context.Context, names []string, hashes []uint64) []error {
	// no-op with Redis, which has its own holds. It comes before memory forgets the keys: see
	// Fetcher.onHold
	c.holds.Set(hashes)
	if c.store == nil {
		return nil
	}
	return c.bus.Delete(ctx, names, hashes)
}

// Expire ends the freshness of keys, as if their TTLs had passed. Use it instead of Invalidate
// for changes that should become visible soon, but need not be. Cached values stay, and are
// served while the first read of each reloads it in the background, or while reloads fail (see
// LoaderOptions.StaleFor and SoftTimeout). A value that was read from the database before the
// call no longer counts as fresh; a load in progress is repeated. Other processes are notified as
// by Invalidate.
//
// If StaleFor is negative, Expire is Invalidate. Expire does not put keys on hold for
// Options.ReplicaLag, but PreferPrimary returns true for their reloads. The errors are those of
// Invalidate.
func (l *Loader[K, V]) Expire(ctx context.Context, keys ...K) error {
	if l.options.StaleFor < 0 {
		return l.Invalidate(ctx, keys...)
	}
	return batchError(l.change(ctx, OpExpire, keys, func(ctx context.Context, names []string, hashes []uint64) []error {
		if l.cache.store == nil {
			return nil
		}
		return l.cache.bus.Do(ctx, names, hashes, lease.Expire)
	}, l.rows.Expire))
}

// change calls send, which changes keys in Redis, and then forget, which changes each key in
// memory. It returns the errors of keys.
func (l *Loader[K, V]) change(
	ctx context.Context, op string, keys []K, send func(ctx context.Context, names []string, hashes []uint64) []error,
	forget func(K, string),
) map[K]error {
	if l.rows.Closed() {
		return l.allFailed(op, keys, ErrClosed)
	}
	ctx, end := l.observe(ctx, OpInvalidate, len(keys))
	valid, errs := l.batch(op, keys)
	failed := failures[K, V]{l, op, errs}
	defer func() { end(batchError(failed.errs)) }()
	namer, counters := &l.rows.Keys, &l.rows.Counters
	n := len(valid.Canonical)
	texts, names, hashes := make([]string, 0, n), make([]string, 0, n), make([]uint64, 0, n)
	valid = valid.Without(func(i int) bool {
		text, err := namer.Text(valid.Canonical[i])
		if err != nil {
			failed.add(valid.Asked[i], "", err)
			return true
		}
		name, _ := namer.Name(text)
		texts, names, hashes = append(texts, text), append(names, name), append(hashes, namer.Hash(text))
		return false
	})
	bad := len(keys) - len(valid.Canonical)
	for i, err := range inOrder(func() []error { return send(ctx, names, hashes) }, func() {
		for i, key := range valid.Canonical {
			forget(key, texts[i])
		}
	}) {
		if err != nil {
			bad++
			counters.RedisErrors.Add(1)
			failed.add(valid.Asked[i], texts[i], redisError(err))
		} else if op != OpExpire { // expired values may be served
			l.cache.sample(func() measure.Written {
				return measure.Written{Loader: l.name, Hash: hashes[i], Key: &valid.Canonical[i]}
			})
		}
	}
	counters.InvalidateErrors.Add(int64(bad))
	counters.Invalidated.Add(int64(len(keys) - bad))
	return failed.errs
}

// inOrder changes keys in Redis, by send, and then in memory, by forget. In the other order a
// reader could fill memory again from Redis. Memory also forgets keys for which Redis has
// returned an error.
func inOrder(send func() []error, forget func()) []error {
	errs := send()
	forget()
	return errs
}

// InvalidateAll removes all keys of this loader, of every Version, from Redis and from memory. It
// costs one command (on a cluster one for each of 16 ranges of keys), for any number of keys.
// Entries stay in Redis until they are read, overwritten or expire, but they are no longer
// served.
//
// After InvalidateAll has returned nil, no Get that starts in this process returns a value that
// was read before. The same is true for a Get in another process that starts more than
// Options.MaxStaleness later. Normally processes with a memory tier are notified immediately; the
// others learn of it with their next poll. Invalidate promises more, so use InvalidateAll for
// changes of many rows, for example after an import. If it returns an error, a part of the keys
// or all may have been invalidated: call it again.
func (l *Loader[K, V]) InvalidateAll(ctx context.Context) error {
	err := ErrClosed
	if !l.rows.Closed() {
		err = l.cache.invalidateAll(ctx, l.name)
	}
	if err != nil {
		return l.AllKeys().wrap(OpInvalidate, err)
	}
	return nil
}

// invalidateAll invalidates all keys of a loader, which this process may not have.
func (c *Cache) invalidateAll(ctx context.Context, name string) error {
	return c.invalidateWhole(ctx, name, 1, func(ctx context.Context, l *rows.Core) error {
		switch {
		case c.bus != nil:
			return c.bus.DeleteLoader(ctx, name)
		case l != nil:
			l.Raise(0, 0)
		}
		return nil
	}, (*rows.Core).ForgetAll)
}

// invalidateWhole calls send, which invalidates all keys or n groups of a loader. l is nil if this
// process does not have the loader. If send fails, forget outdates in memory what it should have
// invalidated.
func (c *Cache) invalidateWhole(
	ctx context.Context, name string, n int, send func(ctx context.Context, l *rows.Core) error,
	forget func(*rows.Core),
) error {
	l, known := c.known(name), ""
	if l != nil {
		known = name
	}
	ctx, end := c.observe(ctx, OpInvalidate, known, n)
	err := send(ctx, l)
	end(err)
	switch {
	case l == nil:
		c.logUnknown(name)
	case err != nil:
		forget(l)
		l.Counts().Fetch.RedisErrors.Add(1)
		l.Counts().Fetch.InvalidateErrors.Add(int64(n))
	default:
		l.Counts().Fetch.Invalidated.Add(int64(n))
	}
	if err != nil {
		return redisError(err)
	}
	return nil
}

// InvalidateGroup invalidates all values of a group (LoaderOptions.Groups), however many there are.
// Call it after the change was committed. It costs one command (on a cluster one for each of 16
// ranges of keys). The entries stay in Redis until they are read, overwritten or expire, but they
// are no longer served.
//
// Once InvalidateGroup has returned nil, no Get that starts in this process returns a value of
// the group that was read from the database before. The same is true in other processes for a Get
// with the option Fresh, and for any Get that starts more than Options.MaxStaleness later.
// Normally processes with a memory tier are notified immediately; the others find the
// invalidation with their next poll. This includes values whose loads are in progress, and whose
// groups are not known.
//
// The group need not exist. A row that moves from one group to another has changed both. If
// InvalidateGroup returns an error, the group may have been invalidated, in part or as a whole:
// call it again. The causes are those of Invalidate, an empty name, a name of none of the loader's
// GroupKinds, and a loader without Groups.
func (l *Loader[K, V]) InvalidateGroup(ctx context.Context, name string) error {
	return l.changeGroup(ctx, OpInvalidate, name, l.cache.invalidateGroups)
}

// ExpireGroup ends the freshness of all values of a group, as Expire does for keys. Use it instead
// of InvalidateGroup for a group of many values that are read all the time, if they may be stale
// for a moment: they are served while the first read of each reloads it in the background, or while
// reloads fail. After InvalidateGroup all of them would be loaded at once, and reads that
// Options.MaxLoads and MaxQueue do not let load would fail.
//
// The cost and the errors are those of InvalidateGroup, and other processes are notified likewise.
// ExpireGroup is InvalidateGroup if StaleFor is negative, in a cache without Redis, for values with
// more than 64 groups, and in processes that have the loader without Groups.
func (l *Loader[K, V]) ExpireGroup(ctx context.Context, name string) error {
	if l.options.StaleFor < 0 || l.cache.bus == nil {
		return l.InvalidateGroup(ctx, name)
	}
	return l.changeGroup(ctx, OpExpire, name, l.cache.expireGroups)
}

func (l *Loader[K, V]) changeGroup(
	ctx context.Context, op, name string, change func(ctx context.Context, loader string, names []string) error,
) error {
	k := l.GroupKey(name)
	err := k.validate()
	if l.rows.Closed() {
		err = ErrClosed
	}
	if err == nil {
		err = change(ctx, l.name, []string{k.Text})
	}
	if err != nil {
		return k.wrap(op, err)
	}
	return nil
}

// invalidateGroups invalidates groups of a loader, which this process may not have. After an error
// some of them may have been invalidated.
func (c *Cache) invalidateGroups(ctx context.Context, loader string, names []string) error {
	set, err := c.groupsNamed(loader, names)
	if err != nil {
		return err
	}
	return c.deleteGroups(ctx, loader, set)
}

// expireGroups is like invalidateGroups, and lets stale values be served.
func (c *Cache) expireGroups(ctx context.Context, loader string, names []string) error {
	set, err := c.groupsNamed(loader, names)
	if err != nil {
		return err
	}
	return c.deleteGroups(ctx, loader, set.Expiry())
}

func (c *Cache) deleteGroups(ctx context.Context, loader string, set groups.Set) error {
	return c.invalidateWhole(ctx, loader, set.Len(), func(ctx context.Context, l *rows.Core) error {
		switch {
		case c.bus != nil && l != nil:
			return c.bus.DeleteGroups(ctx, loader, set, l.Fetch.MaxLife())
		case c.bus != nil:
			return c.bus.DeleteGroups(ctx, loader, set, 0)
		case l != nil:
			l.GroupLog.Invalidate(set)
		}
		return nil
	}, func(l *rows.Core) { l.GroupLog.Forget(set) })
}

// groupsNamed returns groups of a loader. If this process has the loader, it spells the names as
// the loader does. A name of an unknown kind stays as it is: another program may know the kind.
func (c *Cache) groupsNamed(loader string, names []string) (groups.Set, error) {
	l, hashes := c.known(loader), make([]uint64, len(names))
	for i, name := range names {
		if l != nil {
			spelled, err := l.GroupName(name)
			switch {
			case err == nil:
				name = spelled
			case !errors.Is(err, fault.UnknownKind):
				return nil, err
			}
		}
		hashes[i] = keys.GroupHash(loader, name)
	}
	return groups.SetOf(hashes...), nil
}
