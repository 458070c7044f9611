package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/source"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Loader reads rows of one kind through a Cache: from this process's memory, else from Redis, else
// by its load function. It is safe for concurrent use. Its goroutines end with Cache.Close.
type Loader[K comparable, V any] struct {
	storing[K, V]

	cache    *Cache
	name     string
	options  LoaderOptions
	rows     *rows.Reader[K, V]
	clone    func(V) V // nil: values are shared
	notFound error
}

// NewLoader makes the Loader called name in c. The name is part of the loader's keys in Redis, so
// each loader of a cache has a name of its own: letters, digits, "_", "." and "-". K is a string,
// an integer, or an encoding.TextMarshaler (whose text must differ between keys that differ); for
// any other K set LoaderOptions.Key. A K that contains pointers or interfaces is refused without
// Key, except in a time.Time and the types of net/netip. A time.Time stands for its instant,
// whatever its location: the load function gets it in UTC, unless Key is set. V is anything that
// its Codec takes there and back: by default strings and []byte as they are, and all else by
// encoding/json. If the codec loses a part of V, NewLoader returns an error that names the field,
// as in "User.Address.zip"; see JSON, and LoaderOptions.AllowLoss. nil options are the defaults.
//
// load reads one row from the database. For a row that does not exist it returns ErrNotFound,
// sql.ErrNoRows, or an error of which LoaderOptions.NotFound says so; the absence is cached too.
// load must read committed rows: not from within a transaction of the caller's, nor from a replica
// that may lag behind, but for what Options.ReplicaLag allows. It may ask other loaders, and this
// one for other keys, with its own context, by which they know it (see Options.MaxLoads); it must
// not pass on their ErrNotFound unless this row is missing then. If it asks for a key that it would
// wait for in vain, such as its own, it gets what is cached of it, stale or not, or else
// ErrLoadCycle, at once. load runs on a goroutine of its own, for all callers who ask for the key
// at the time. Its context does not have the cancellation of a caller: it ends after LoadTimeout,
// when the last caller has left, or at Close. A panic in load becomes a *PanicError.
//
// The context of load carries the values of the first caller's context until that caller's Get
// returns. From then on Value returns nil, even while load still runs for other callers: web
// frameworks such as gin and fasthttp use a context object again for their next request, whose
// values it has then. With gin, pass c.Request.Context() to Get. Where load runs in the background,
// to replace a value whose TTL has passed or is about to (LoaderOptions.StaleFor, EarlyRefresh),
// its context has no caller's values at all: everything that a row depends on belongs in its key.
func NewLoader[K comparable, V any](c *Cache, name string, load func(ctx context.Context, key K) (V, error), options *LoaderOptions) (*Loader[K, V], error) {
	if load == nil {
		return nil, fmt.Errorf("cacheaside: loader %q: the load function is nil", name)
	}
	return newLoader(c, name, rows.OneByOne(load), false, options)
}

// NewBatchLoader is NewLoader for a load function that reads many rows at once, as by SELECT …
// WHERE id IN (…). load is called with the keys, all different, that this process has to load just
// then: one for most Gets, at most LoaderOptions.BatchSize for a GetMany. The slice is its own.
//
// load returns the rows that it has found. A key that is missing in the map has no row; the absence
// is cached, so load must not leave out a key for any other reason. If some keys have failed, load
// returns the others with a *BatchError[K]: then a key that is in neither has failed too, and a key
// whose error is ErrNotFound or sql.ErrNoRows has no row. With any other error all keys have
// failed. Values for keys that load was not asked for are ignored, and counted (Stats.Unasked).
//
// A row may need another row of the same batch. If load asks for that one with Get or GetMany, it
// gets what is cached of it; otherwise the row is loaded once more, by a call of load for its key
// alone, and not stored. Rows that need each other are a cycle: ErrLoadCycle.
//
// A row belongs to the key under which it is in the map, and else to a key with the same text,
// such as an equal time in another location. If several such rows differ, the key fails. The
// errors in a *BatchError are matched in the same way.
func NewBatchLoader[K comparable, V any](c *Cache, name string, load func(ctx context.Context, keys []K) (map[K]V, error), options *LoaderOptions) (*Loader[K, V], error) {
	if load == nil {
		return nil, fmt.Errorf("cacheaside: loader %q: the load function is nil", name)
	}
	return newLoader(c, name, load, true, options)
}

func newLoader[K comparable, V any](c *Cache, name string, load func(context.Context, []K) (map[K]V, error), batch bool, options *LoaderOptions) (*Loader[K, V], error) {
	l := &Loader[K, V]{cache: c, name: name, options: options.withDefaults(), notFound: &notFound{name}}
	switch {
	case c == nil:
		return nil, fmt.Errorf("cacheaside: loader %q: the cache is nil", name)
	case !keys.ValidName(name):
		return nil, fmt.Errorf("cacheaside: loader %q: only letters, digits, '_', '.' and '-' in a name", name)
	}
	own, err := l.rowsOptions(load, batch)
	if err != nil {
		return nil, fmt.Errorf("cacheaside: loader %q: %w", name, err)
	}
	l.storing = writeside.Give[writeside.Loader[K, V, *Hold]](writtenBy[K, V]{l})
	l.rows = rows.New(c.shared(), own)
	if err := c.add(name, registered{&l.rows.Core, reflect.TypeOf(l)}); err != nil {
		l.rows.Close()
		return nil, fmt.Errorf("cacheaside: loader %q: %w", name, err)
	}
	return l, nil
}

// rowsOptions checks the options, and makes what they ask for.
func (l *Loader[K, V]) rowsOptions(load func(context.Context, []K) (map[K]V, error), batch bool) (own rows.Options[K, V], err error) {
	o := l.options
	if err := cmp.Or(o.check(), o.lockable(batch)); err != nil {
		return own, err
	}
	own = rows.Options[K, V]{
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
	if err := cmp.Or(textErr, normalizeErr, cloneErr, weightErr); err != nil {
		return own, err
	}
	l.clone, own.Weight = clone, weight
	space := keys.NewNamespace(l.cache.options.Prefix, l.name, o.Version)
	if own.Keys, err = rows.NewKeys(space, rows.Made[K]{Text: text, Normalize: normalize, Caught: caught}); err != nil {
		return own, err
	}
	own.Codec, err = codec.New[V](o.Codec, o.CompressAbove, o.MaxValueBytes, caught)
	if err == nil && (!l.cache.options.NoRedis || o.Shadow > 0) { // else nothing is encoded
		err = codec.Check(reflect.TypeFor[V](), o.Codec, o.AllowLoss)
	}
	if err != nil {
		return own, fmt.Errorf("LoaderOptions.Codec: %w", err)
	}
	if o.AllowLoss {
		own.Codec = own.Codec.Lossy()
	}
	return own, nil
}

// Get returns the value of key, or ErrNotFound if there is no such row. The value may be shared
// with other callers, and with the memory tier: do not change what it points to, or set
// LoaderOptions.Clone.
//
// ctx ends only this caller's wait, within milliseconds, even when Redis hangs. Errors are wrapped
// in an *Error: ctx's own, the load's, a *PanicError, ErrLoadFailed, ErrLoadTimeout,
// ErrUnavailable, ErrClosed. When Redis is out of reach or in trouble, the value is loaded, once
// for all callers in this process at the time, and not stored in Redis (Stats.Unvalidated counts
// such loads); see LoaderOptions.RedisDown.
//
// After Invalidate has returned nil in this process, no Get that starts here receives a value that
// was read before. In other processes the same holds for a Get with the option Fresh, and for
// loaders without the memory tier. Loaders with the memory tier may serve such a value for some
// milliseconds there, and if the network fails them, for Options.MaxStaleness. Values read before
// the subscription to invalidations stands, some milliseconds after the first Get, are not put in
// memory.
func (l *Loader[K, V]) Get(ctx context.Context, key K, options ...ReadOption) (V, error) {
	if l.rows.Keys.Own != nil {
		var err error
		if key, err = l.own("get", key); err != nil {
			return *new(V), err
		}
	}
	how := fetch.Plain
	if len(options) > 0 && slices.Contains(options, Fresh) {
		how = fetch.Fresh
	} else if item, ok := l.rows.Remembered(key); ok {
		return l.result(item.Value, item.Null)
	}
	ctx, end := l.observe(ctx, OpGet, 1)
	got, err := l.rows.Get(ctx, how, key)
	end(err)
	if err != nil {
		return *new(V), l.wrap("get", key, err)
	}
	return l.result(rows.Value[V](got.Value), got.Null)
}

// GetMany returns the values of keys, in few round trips: one for those that are cached in Redis;
// for the others two more, with a batch load of up to LoaderOptions.BatchSize of them (a few more
// for more, and one for each key with a load function of one row). The map, never nil, has all rows
// that were found. The error, a *BatchError[K], has an *Error for each key that failed. A key in
// neither has no row. Each key is read as by Get, with its promises, and shares its load with all
// other callers who ask for it, here and in other processes.
//
// When ctx ends, GetMany returns what it has, and ctx's error for the rest. A load function of one
// row is called for several keys at once, up to 8.
func (l *Loader[K, V]) GetMany(ctx context.Context, keys []K, options ...ReadOption) (map[K]V, error) {
	found := make(map[K]V, len(keys))
	missing, errs := l.batch("get", keys)
	how := fetch.Fresh
	if !slices.Contains(options, Fresh) {
		missing, how = l.rememberedMany(missing, found), fetch.Plain
	}
	if len(missing.Own) == 0 {
		return found, batchError(errs)
	}
	failed := failures[K, V]{l, "get", errs}
	ctx, end := l.observe(ctx, OpGet, len(missing.Own))
	l.rows.GetMany(ctx, how, missing.Own, func(i int, r *fetch.Round) {
		if value, err := l.result(rows.Value[V](r.Value), r.Null); err == nil {
			found[missing.Asked[i]] = value
		}
	}, failed.adder(missing))
	err := batchError(failed.errs)
	end(err)
	return found, err
}

// rememberedMany puts into found the values of keys that memory has, and returns the other keys.
func (l *Loader[K, V]) rememberedMany(b rows.Batch[K], found map[K]V) (missing rows.Batch[K]) {
	return b.Without(func(i int) bool {
		item, ok := l.rows.Remembered(b.Own[i])
		if ok {
			if value, err := l.result(item.Value, item.Null); err == nil {
				found[b.Asked[i]] = value
			}
		}
		return ok
	})
}

// Bypass switches the caches off for this loader, or on again, at run time. While Bypass is on, Get
// and Refresh go straight to the database, still once for all callers who ask together. Nothing is
// stored, and only Invalidate removes anything: cached values are served again afterwards. Rounds
// that are under way finish as they began.
func (l *Loader[K, V]) Bypass(on bool) { l.rows.Bypass(on) }

// Stats returns this loader's counts.
func (l *Loader[K, V]) Stats() Stats {
	var s Stats
	s.addLoader(l.rows.Counts())
	l.cache.addStats(&s)
	return s
}

// result is what a caller gets of a value, or of its absence.
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

// Peek returns the cached value of key, from this process's memory or else from Redis, and never
// loads it. ok tells whether anything is cached. The value may be stale, within the StaleFor of the
// loader that has stored it. If the absence of the row is cached, ok is true and the error is
// ErrNotFound. Other errors are those of Redis, ctx's, ErrClosed, and that of a key without a text;
// ok is false then. Peek asks no Filter, begins no reload, puts nothing into memory, and is not
// counted as a Get. Under Bypass nothing is cached.
func (l *Loader[K, V]) Peek(ctx context.Context, key K) (value V, ok bool, err error) {
	if key, err = l.own("peek", key); err != nil {
		return value, false, err
	}
	item, ok, err := l.rows.Peek(ctx, key)
	switch {
	case err != nil:
		return value, false, l.wrap("peek", key, err)
	case !ok:
		return value, false, nil
	}
	value, err = l.result(rows.Value[V](item.Value), item.Null)
	return value, true, err
}

// Each returns an iterator that reads keys as GetMany does, when it is ranged over. It yields the
// value of each key, or its error, in the order of keys: ErrNotFound for a row that does not exist.
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
				err = l.wrap("get", key, flight.ErrNotEqual)
			default:
				err = l.notFound
			}
			if !yield(value, err) {
				return
			}
		}
	}
}

// SetTTL sets how long the value that the running load returns may stay cached, instead of
// LoaderOptions.TTL (or NullTTL, if there is no such row). In a batch load it holds for all keys of
// the call. ctx is the load's context, or made from it; with any other ctx SetTTL does nothing, so
// that a load function can be called by itself. The TTL is brought within MinTTL and MaxTTL, and
// Jitter applies. The last call counts.
func SetTTL(ctx context.Context, ttl time.Duration) {
	source.SetTTL(ctx, min(max(ttl, MinTTL), MaxTTL))
}

// PreferPrimary tells a load function to read from the primary of the database, because a replica
// may not have the row's last change yet: the key was invalidated less than Options.ReplicaLag ago,
// or is on hold while its row is written (Options.StrictWrites), or was expired or is refreshed
// (see Expire, Refresh), or nobody can say, since Redis could not be asked or is bypassed; or an
// earlier load for the same callers was overtaken by an invalidation. ctx is the load's context, or
// made from it. With any other ctx, and where neither option is set, the answer is false. In a
// batch load it holds for all keys of the call: those for which it is false have a call of their
// own.
//
//	db := replica
//	if cacheaside.PreferPrimary(ctx) {
//		db = primary
//	}
//
// A load that reads from the replica all the same may return a row from before the invalidation.
// The callers of that load get the row, but it is not stored.
func PreferPrimary(ctx context.Context) bool {
	return fetch.PreferPrimary(ctx)
}
