package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/source"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// A Loader reads rows of one kind through a Cache: from the memory of this process, then from
// Redis, then by its load function. It is safe for concurrent use. Its goroutines end with
// Cache.Close.
type Loader[K comparable, V any] struct {
	storing[K, V]

	cache    *Cache
	name     string
	options  LoaderOptions
	rows     *rows.Reader[K, V]
	clone    func(V) V // nil: callers share values
	notFound error
}

// NewLoader returns a new Loader of c. Its name is part of its keys in Redis, and must be unique
// in the cache. It consists of letters, digits, "_", "." and "-". Nil options mean the defaults.
//
// K is a string, an integer, or an encoding.TextMarshaler whose texts differ for different keys.
// For any other K, set LoaderOptions.Key. Without Key, a K that contains pointers or interfaces
// is an error, except in a time.Time and the types of net/netip. A time.Time stands for its
// instant in any location: the load function gets it in UTC, unless Key is set.
//
// V is any type that the Codec preserves. By default strings and []byte are stored as they are,
// and other types by encoding/json. If the codec loses a part of V, NewLoader returns an error
// that names the field, for example "User.Address.zip". See JSON, and LoaderOptions.AllowLoss.
//
// load reads one row from the database. If the row does not exist, load returns ErrNotFound,
// sql.ErrNoRows, or an error that LoaderOptions.NotFound accepts; the absence is cached too. load
// must read committed rows. It must not read inside a transaction of the caller. It must not read
// from a replica that lags, except as described at Options.ReplicaLag.
//
// load runs on its own goroutine, once for all concurrent callers of the key in this process. Its
// context is not cancelled with that of a caller. It ends after LoadTimeout, when the last caller
// has left, or at Close. A panic in load is returned as a *PanicError.
//
// load may call other loaders, and this loader for other keys. It must pass its own context,
// which identifies the load (see Options.MaxLoads). It must not return their ErrNotFound unless
// this row does not exist either. If load reads a key whose load it would wait for in vain, such
// as its own, it gets the cached value of that key, fresh or stale. If there is none, it
// immediately gets ErrLoadCycle.
//
// The context of load has the values of the first caller's context until that caller's Get
// returns. After that Value returns nil, even if load still runs for other callers. The reason is
// that web frameworks such as gin and fasthttp reuse a context object, with other values, for
// their next request. With gin, pass c.Request.Context() to Get. The context of a background
// reload (LoaderOptions.StaleFor, EarlyRefresh) has no values of callers. So everything that a
// row depends on must be part of its key.
func NewLoader[K comparable, V any](
	c *Cache, name string, load func(ctx context.Context, key K) (V, error), options *LoaderOptions,
) (*Loader[K, V], error) {
	if load == nil {
		return nil, fmt.Errorf("cacheaside: loader %q: the load function is nil", name)
	}
	return newLoader(c, name, rows.OneByOne(load), false, options)
}

// NewBatchLoader is like NewLoader, for a load function that reads many rows with one query, such
// as SELECT … WHERE id IN (…). load gets the distinct keys that this process needs to load at
// that time: usually one for a Get, and at most LoaderOptions.BatchSize for a GetMany. load owns
// the slice.
//
// load returns the rows that it has found. A key that is missing in the map has no row. This
// absence is cached, so load must not leave out a key for another reason. If some keys have
// failed, load returns the other rows with a *BatchError[K]. Then a key that is in neither has
// failed too, and a key whose error is ErrNotFound or sql.ErrNoRows has no row. Any other error
// means that all keys have failed. Values for keys that load was not called with are ignored, and
// counted (Stats.Unasked).
//
// If load reads another key of the same batch with Get or GetMany, it gets the cached value of
// that key. If there is none, load is called once more, for that key alone, and the result is not
// stored. Rows that need each other are a cycle: ErrLoadCycle.
//
// The map is searched for the key itself, then for a key with the same text, such as an equal
// time in another location. If several rows with that text differ, the key fails. The errors in a
// *BatchError are matched in the same way.
func NewBatchLoader[K comparable, V any](
	c *Cache, name string, load func(ctx context.Context, keys []K) (map[K]V, error), options *LoaderOptions,
) (*Loader[K, V], error) {
	if load == nil {
		return nil, fmt.Errorf("cacheaside: loader %q: the load function is nil", name)
	}
	return newLoader(c, name, load, true, options)
}

func newLoader[K comparable, V any](
	c *Cache, name string, load func(context.Context, []K) (map[K]V, error), batch bool, options *LoaderOptions,
) (*Loader[K, V], error) {
	l := &Loader[K, V]{cache: c, name: name, options: options.withDefaults(), notFound: &notFound{name}}
	switch {
	case c == nil:
		return nil, fmt.Errorf("cacheaside: loader %q: the cache is nil", name)
	case !keys.ValidName(name):
		return nil, fmt.Errorf("cacheaside: loader %q: only letters, digits, '_', '.' and '-' in a name", name)
	}
	settings, err := l.rowsOptions(load, batch)
	if err != nil {
		return nil, wording.Errorf("cacheaside: loader %q: %w", name, err)
	}
	l.storing = writeside.Give[writeside.Loader[K, V, *Hold]](writerLoader[K, V]{l})
	l.rows = rows.New(c.shared(), settings)
	if err := c.add(name, registered{&l.rows.Core, reflect.TypeOf(l), l.options.RedisDown}); err != nil {
		l.rows.Close()
		return nil, wording.Errorf("cacheaside: loader %q: %w", name, err)
	}
	return l, nil
}

// rowsOptions checks the options, and returns the settings of the loader's reader.
func (l *Loader[K, V]) rowsOptions(
	load func(context.Context, []K) (map[K]V, error), batch bool,
) (settings rows.Options[K, V], err error) {
	o := l.options
	if err := cmp.Or(o.check(), o.lockable(batch)); err != nil {
		return settings, err
	}
	settings = rows.Options[K, V]{
		CoreOptions: o.core(l.name, batch), Load: load,
		Failed: func(err error) (errs map[K]error, partial bool) {
			failed, _ := errors.AsType[*BatchError[K]](err)
			if failed == nil {
				return nil, false
			}
			return failed.Errs, true
		},
	}
	text, textErr := function[func(K) string](o.Key, "Key", "KeyOf")
	normalize, normalizeErr := function[func(K) K](o.Normalize, "Normalize", "NormalizeOf")
	clone, cloneErr := function[func(V) V](o.Clone, "Clone", "CloneOf")
	weight, weightErr := function[func(V) int64](o.Weight, "Weight", "WeightOf")
	names, groupsErr := groupsFunction[K, V](o.Groups)
	if err := cmp.Or(textErr, normalizeErr, cloneErr, weightErr, groupsErr,
		checkGroupKinds(o.GroupKinds, o.Groups)); err != nil {
		return settings, err
	}
	if f, ok := o.Filter.(fetch.FilterOwned); ok {
		if err := f.SetOwner(l.cache.options.Prefix); err != nil {
			return settings, fmt.Errorf("LoaderOptions.Filter: %w", err)
		}
	}
	l.clone, settings.Weight, settings.Groups, settings.GroupName = clone, weight, names, groupNames(o.GroupKinds)
	space := keys.NewNamespace(l.cache.options.Prefix, l.name, o.Version)
	if settings.Keys, err = rows.NewKeys(space, rows.Made[K]{Text: text, Normalize: normalize,
		Caught: caught}); err != nil {
		return settings, err
	}
	settings.Codec, err = codec.New[V](o.Codec, o.CompressAbove, o.MaxValueBytes, caught)
	if err == nil && (l.cache.store != nil || o.Shadow > 0) { // otherwise nothing is encoded
		err = codec.Check(reflect.TypeFor[V](), o.Codec, o.AllowLoss)
	}
	if err != nil {
		return settings, fmt.Errorf("LoaderOptions.Codec: %w", err)
	}
	if o.AllowLoss {
		settings.Codec = settings.Codec.Lossy()
	}
	return settings, nil
}

// Get returns the value of key, or ErrNotFound if there is no such row. Other callers and the
// memory tier may share the value: do not change anything that it points to, or set
// LoaderOptions.Clone.
//
// When ctx ends, Get returns within milliseconds, even if Redis hangs; the load continues for
// other callers. Errors are wrapped in an *Error, except ErrNotFound. They are ctx's error, the
// error of the load, a *PanicError, ErrLoadFailed, ErrLoadTimeout, ErrLoadCycle, ErrUnavailable
// and ErrClosed. While Redis is down or failing, the value is loaded, once for all concurrent
// callers in this process, and not stored in Redis (Stats.Unvalidated counts such loads).
// LoaderOptions.RedisDown changes this behaviour; then Get may return ErrRedis.
//
// After Invalidate has returned nil in this process, no Get that starts here returns a value that
// was read before. In other processes the same is true for a Get with the option Fresh, and for
// loaders without the memory tier. Loaders with the memory tier may serve such a value there for
// some milliseconds, or for up to Options.MaxStaleness if the network fails. The process
// subscribes to invalidations at its first Get. Values that are read before the subscription is
// confirmed, usually within milliseconds, are not put into memory.
func (l *Loader[K, V]) Get(ctx context.Context, key K, options ...ReadOption) (V, error) {
	if l.rows.Keys.Canonical != nil {
		var err error
		if key, err = l.canonical(OpGet, key); err != nil {
			return *new(V), err
		}
	}
	remembered, mode := true, fetch.Plain
	if len(options) > 0 {
		remembered, mode = l.cache.reads(options)
	}
	if remembered {
		if item, ok := l.rows.Remembered(key); ok {
			return l.result(item.Value, item.Null)
		}
	}
	ctx, end := l.observe(ctx, OpGet, 1)
	got, err := l.rows.Get(ctx, mode, key)
	end(err)
	if err != nil {
		return *new(V), l.wrap(OpGet, key, err)
	}
	return l.result(rows.Value[V](got.Value), got.Null)
}

// GetMany returns the values of keys, in few round trips: one for keys that are cached in Redis,
// and two more with one batch load for up to LoaderOptions.BatchSize missing keys. More missing
// keys take a few more trips. A load function of one row is called for each missing key, for up
// to 8 keys concurrently.
//
// The map, which is never nil, contains all rows that were found. The error is a *BatchError[K]
// with an *Error for each key that failed. A key in neither has no row. Each key is read as by
// Get, with the same promises, and shares its load with all concurrent callers of the key, in
// this process and others. When ctx ends, GetMany returns the rows that it has, and ctx's error
// for the other keys.
func (l *Loader[K, V]) GetMany(ctx context.Context, keys []K, options ...ReadOption) (map[K]V, error) {
	found := make(map[K]V, len(keys))
	missing, errs := l.batch(OpGet, keys)
	remembered, mode := l.cache.reads(options)
	if remembered {
		missing = l.rememberedMany(missing, found)
	}
	if len(missing.Canonical) == 0 {
		return found, batchError(errs)
	}
	failed := failures[K, V]{l, OpGet, errs}
	ctx, end := l.observe(ctx, OpGet, len(missing.Canonical))
	l.rows.GetMany(ctx, mode, missing.Canonical, func(i int, r *fetch.Round) {
		if value, err := l.result(rows.Value[V](r.Value), r.Null); err == nil {
			found[missing.Asked[i]] = value
		}
	}, failed.adder(missing))
	err := batchError(failed.errs)
	end(err)
	return found, err
}

// rememberedMany adds the values that are in memory to found, and returns the other keys.
func (l *Loader[K, V]) rememberedMany(b rows.Batch[K], found map[K]V) (missing rows.Batch[K]) {
	return b.Without(func(i int) bool {
		item, ok := l.rows.Remembered(b.Canonical[i])
		if ok {
			if value, err := l.result(item.Value, item.Null); err == nil {
				found[b.Asked[i]] = value
			}
		}
		return ok
	})
}

// Bypass switches the caches of this loader off, or on again, at run time. While Bypass is on,
// Get and Refresh read from the database, still once for all concurrent callers. Nothing is
// stored, and only Invalidate removes entries, so cached values are served again afterwards.
// Reads in progress finish as they started.
func (l *Loader[K, V]) Bypass(on bool) { l.rows.Bypass(on) }

// Stats returns the counts of this loader.
func (l *Loader[K, V]) Stats() Stats {
	var s Stats
	s.addLoader(l.rows.Counts())
	l.cache.addStats(&s)
	return s
}

// result returns what a caller gets for a value, or for the absence of a row.
func (l *Loader[K, V]) result(value V, null bool) (V, error) {
	switch {
	case null:
		return value, l.notFound
	case l.clone != nil:
		return l.clone(value), nil
	default:
		return value, nil
	}
}

// Peek returns the cached value of key, from this process's memory or else from Redis. It never
// loads the row. ok reports whether a value, or the absence of the row, is cached. The value may
// be stale, within the StaleFor of the loader that has stored it. If the absence is cached, ok is
// true and the error is ErrNotFound. Other errors are ErrRedis, ctx's error, ErrClosed, and the
// error of a key without a text; then ok is false. Peek calls no Filter, starts no reload, puts
// nothing into memory, and does not count as a Get. While Bypass is on, ok is false.
func (l *Loader[K, V]) Peek(ctx context.Context, key K) (value V, ok bool, err error) {
	if key, err = l.canonical(OpPeek, key); err != nil {
		return value, false, err
	}
	item, ok, err := l.rows.Peek(ctx, key)
	switch {
	case err != nil:
		return value, false, l.wrap(OpPeek, key, err)
	case !ok:
		return value, false, nil
	}
	value, err = l.result(rows.Value[V](item.Value), item.Null)
	return value, true, err
}

// Each returns an iterator that reads keys as GetMany does, each time it is ranged over. It
// yields the value of each key, or its error, in the order of keys. The error is ErrNotFound if
// the row does not exist.
//
//	for user, err := range users.Each(ctx, ids) {
//		…
//	}
func (l *Loader[K, V]) Each(ctx context.Context, keys []K, options ...ReadOption) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		found, err := l.GetMany(ctx, keys, options...)
		failed, _ := errors.AsType[*BatchError[K]](err)
		for _, key := range keys {
			value, ok := found[key]
			var err error
			switch {
			case ok:
			case failed != nil && failed.Errs[key] != nil:
				err = failed.Errs[key]
			case key != key: //nolint:gocritic // no map finds it
				err = l.wrap(OpGet, key, flight.ErrNotEqual)
			default:
				err = l.notFound
			}
			if !yield(value, err) {
				return
			}
		}
	}
}

// SetTTL sets the TTL of the value that the running load returns, in place of LoaderOptions.TTL
// (or of NullTTL, if the row does not exist). In a batch load it applies to all keys of the call.
// ctx is the load's context, or derived from it. With any other ctx SetTTL does nothing, so a
// load function can be called outside of a loader. A ttl below MinTTL or above MaxTTL is raised
// or lowered to it, and Jitter applies. The last call wins.
func SetTTL(ctx context.Context, ttl time.Duration) {
	source.SetTTL(ctx, min(max(ttl, MinTTL), MaxTTL))
}

// PreferPrimary reports whether a load function should read from the primary of the database,
// because a replica may not have the last change of the row. It returns true if
//
//   - the key was invalidated less than Options.ReplicaLag ago;
//   - the key is on hold while its row is written (Options.StrictWrites);
//   - the key was expired or is being refreshed (see Expire, Refresh);
//   - the state of the key is unknown, because Redis is down or bypassed;
//   - an invalidation has overtaken an earlier load for the same callers.
//
// ctx is the load's context, or derived from it. With any other ctx, and if neither option is
// set, PreferPrimary returns false. In a batch load the result applies to all keys of the call:
// keys with different results are loaded by different calls.
//
//	db := replica
//	if cacheaside.PreferPrimary(ctx) {
//		db = primary
//	}
//
// A load that reads from the replica in spite of this may return a row from before the
// invalidation. The callers of that load get the row, but it is not stored.
func PreferPrimary(ctx context.Context) bool {
	return fetch.PreferPrimary(ctx)
}
