package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/source"
)

// Loader reads rows of one kind through a Cache: from this process's memory, else from Redis, else by its load function. It is safe
// for concurrent use. Its goroutines end with Cache.Close.
type Loader[K comparable, V any] struct {
	cache     *Cache
	name      string
	options   LoaderOptions
	load      loadFunc[K, V]
	source    *source.Source // which calls it
	chunk     int            // how many keys a call of it may have
	calls     int            // of it, by one flight at once
	encodeKey func(K) (string, error)
	decodeKey func(text string) (key K, ok bool) // nil: it cannot be done
	keys      keys.Namespace
	codec     *codec.Codec[V]
	clone     func(V) V // nil: values are shared
	seed      maphash.Seed
	memory    *local.Tier // nil: not used by this loader
	textKeys  bool        // keys refer to other memory
	notFound  error
	eras      local.Eras // what it holds is of these, in each range of keys

	aside    atomic.Uint32 // who passes by the memory tier: bypassing, shadowing
	counters fetch.Counters
	fetch    *fetch.Fetcher // which reads what memory does not answer

	reads       *reads[K]
	fresh       *reads[K] // that the memory tier may not answer
	warms       *reads[K] // that the filter is not asked for
	refreshes   *reads[K]
	straight    *reads[K] // of the database, for a shadow; else nil
	life        context.Context
	stop        context.CancelCauseFunc
	filter      Filter       // nil: none
	leaveFilter func()       // ends what joinFilter has begun
	returned    *returned[K] // keys of rows, for the filter; nil: it does not ask
	shadow      *shadow      // nil: callers are answered by the caches
}

// NewLoader makes the Loader called name in c. The name is part of its keys in Redis, so the loaders of one cache have different ones:
// letters, digits, "_", "." and "-". K is a string, an integer, or an encoding.TextMarshaler (whose text must differ between
// keys that differ); for any other K set LoaderOptions.Key. V is anything that its Codec takes there and back: by default strings and
// []byte as they are, and all else by encoding/json. If it loses a part of V, the error names the
// field, as in "User.Address.zip"; see JSON, and LoaderOptions.AllowLoss. nil options are the
// defaults.
//
// load reads one row from the database. It returns ErrNotFound or sql.ErrNoRows for a row that does
// not exist, or an error of which LoaderOptions.NotFound says so; that is cached too. It must read
// what has been committed: not from within a transaction of the caller's, nor from a replica that
// may lag behind, but for what Options.ReplicaLag allows. It may ask other loaders, and this one
// for other keys, with its own context, by which they know it (see Options.MaxLoads); it must not
// pass on their ErrNotFound unless this row is missing then. If it asks for what it would wait for
// in vain, as its own key, it gets ErrLoadCycle at once. It runs on a goroutine of its own, for all
// who ask for the key at the time; its context carries the values of the first caller's context,
// but not its cancellation: it ends after LoadTimeout, when the last of them has left, or at Close.
// A panic in it becomes a *PanicError. Where it runs in the background, to replace a value whose
// TTL has passed or is about to (LoaderOptions.StaleFor, EarlyRefresh), nobody waits for it, and
// its context has no values of anybody's: what a row depends on belongs into its key.
func NewLoader[K comparable, V any](c *Cache, name string, load func(ctx context.Context, key K) (V, error), options *LoaderOptions) (*Loader[K, V], error) {
	if load == nil {
		return nil, fmt.Errorf("cacheaside: loader %q: the load function is nil", name)
	}
	return newLoader(c, name, oneByOne(load), false, options)
}

// NewBatchLoader is NewLoader for a load function that reads many rows at once, as by SELECT … WHERE id IN (…). It is called with the keys, all
// different, that this process has to load just then: one for most Gets, at most LoaderOptions.BatchSize for a GetMany. Its slice is its own.
//
// It returns what it has found; a key that is missing in its map has no row, which is cached. So it must not leave out a key for any other reason. If
// some keys have failed, it returns the others with a *BatchError[K]: then a key that is in neither has failed too, and one whose error
// is ErrNotFound or sql.ErrNoRows has no row. With any other error all keys have failed. Values for keys that it was not asked for are
// ignored, and counted (Stats.Unasked).
func NewBatchLoader[K comparable, V any](c *Cache, name string, load func(ctx context.Context, keys []K) (map[K]V, error), options *LoaderOptions) (*Loader[K, V], error) {
	if load == nil {
		return nil, fmt.Errorf("cacheaside: loader %q: the load function is nil", name)
	}
	return newLoader(c, name, load, true, options)
}

func newLoader[K comparable, V any](c *Cache, name string, load loadFunc[K, V], batch bool, options *LoaderOptions) (*Loader[K, V], error) {
	l := &Loader[K, V]{cache: c, name: name, options: options.withDefaults(), load: load, chunk: 1, notFound: &notFound{name}, seed: maphash.MakeSeed()}
	switch {
	case c == nil:
		return nil, fmt.Errorf("cacheaside: loader %q: the cache is nil", name)
	case !keys.ValidName(name):
		return nil, fmt.Errorf("cacheaside: loader %q: only letters, digits, '_', '.' and '-' in a name", name)
	}
	if err := l.setUp(batch); err != nil {
		return nil, fmt.Errorf("cacheaside: loader %q: %w", name, err)
	}
	if batch {
		l.chunk = l.options.BatchSize
	}
	l.calls = fetch.MaxCalls
	for _, most := range []int{c.options.MaxLoads, l.options.MaxLoads} { // else the calls of one batch would stand in each other's way
		if most > 0 {
			l.calls = min(l.calls, most)
		}
	}
	l.keys = keys.NewNamespace(c.options.Prefix, name, l.options.Version)
	if l.options.MemoryTTL > 0 {
		l.memory = c.memory
	}
	if l.memory == nil {
		l.aside.Or(forgetful)
	}
	l.textKeys = !local.Flat[K]()
	l.life, l.stop = context.WithCancelCause(context.Background())
	l.source = l.newSource(batch)
	if l.options.Shadow > 0 {
		l.beShadow()
	}
	l.fetch = l.newFetcher()
	l.reads = l.group(fetch.Plain, l.fetch.Current)
	l.fresh, l.warms = l.reads, l.reads
	if l.memory != nil || l.fetch.HasFreshFilter() {
		l.fresh = l.group(fetch.Fresh, never)
	}
	if l.filter != nil {
		l.warms = l.group(fetch.Unfiltered, l.fetch.Current)
	}
	l.refreshes = l.refreshGroup()
	if c.channel == nil {
		l.eras[0].Store(&local.Era{})
	}
	l.joinFilter()
	if err := c.add(name, l); err != nil {
		l.leaveFilter()
		return nil, fmt.Errorf("cacheaside: loader %q: %w", name, err)
	}
	return l, nil
}

// setUp checks the options, and makes what they ask for.
func (l *Loader[K, V]) setUp(batch bool) error {
	if err := cmp.Or(l.options.check(), l.options.lockable(batch), l.setFilter()); err != nil {
		return err
	}
	text, err := function[func(K) string](l.options.Key, "Key", "KeyOf")
	if err != nil {
		return err
	}
	if l.encodeKey, err = keys.Encoder(text, caught); err != nil {
		return err
	}
	if text == nil {
		l.decodeKey = keys.Decoder(l.encodeKey)
	}
	if l.clone, err = function[func(V) V](l.options.Clone, "Clone", "CloneOf"); err != nil {
		return err
	}
	l.codec, err = codec.New[V](l.options.Codec, l.options.CompressAbove, l.options.MaxValueBytes, caught)
	if err == nil && !l.cache.options.NoRedis { // which needs no codec
		err = codec.Check(reflect.TypeFor[V](), l.options.Codec, l.options.AllowLoss)
	}
	if err != nil {
		return fmt.Errorf("LoaderOptions.Codec: %w", err)
	}
	return nil
}

// Get returns the value of key, or ErrNotFound if there is no such row. The value may be shared with other callers, and with the memory
// tier: do not change what it points to, or set LoaderOptions.Clone.
//
// ctx ends only this caller's wait, within milliseconds, even when Redis hangs. Errors are wrapped in an *Error: ctx's own, the load's, a
// *PanicError, ErrLoadFailed, ErrLoadTimeout, ErrUnavailable, ErrClosed. When Redis is out of reach or in trouble, the value is loaded, once for all
// who ask in this process at the time, and stored nowhere (Stats.Unvalidated counts it).
//
// After Invalidate has returned nil in this process, no Get that starts here receives a value that was read before. In other
// processes that holds for a Get with the option Fresh, and for loaders without the memory tier; with it they may serve such a value for some
// milliseconds, and if the network fails them, for Options.MaxStaleness. What is read before the subscription to invalidations stands, some milliseconds
// after the first Get, is not remembered.
func (l *Loader[K, V]) Get(ctx context.Context, key K, options ...ReadOption) (V, error) {
	reads := l.reads
	if len(options) > 0 && slices.Contains(options, Fresh) {
		reads = l.fresh
	} else if item, ok := l.remembered(key); ok {
		return l.give(item.Value, item.Null)
	}
	if l.shadow != nil {
		return l.getStraight(ctx, key, reads)
	}
	l.counters.Misses.Add(1)
	ctx, end := l.observe(ctx, OpGet, 1)
	s, err := reads.Do(ctx, key)
	end(err)
	if err != nil {
		var none V
		return none, l.wrap("get", key, err)
	}
	return l.give(valueOf[V](s.Value), s.Null)
}

// GetMany returns the values of keys, in few round trips: one for those that are cached in Redis; for the others two more, with a batch load
// of up to LoaderOptions.BatchSize of them (a few more for more, and one for each key with a load function of one row). The map, never nil, has all that was found, a *BatchError[K] an *Error for each
// key that failed; a key in neither has no row. Each key is read as by Get, whose promises hold for it, and shares its load with whoever
// else asks for it, here and in other processes.
//
// When ctx ends, GetMany returns what it has, and ctx's error for the rest. A load function of one row is called for several keys at once,
// up to 8.
func (l *Loader[K, V]) GetMany(ctx context.Context, keys []K, options ...ReadOption) (map[K]V, error) {
	found := make(map[K]V, len(keys))
	missing, reads := keys, l.fresh
	if !slices.Contains(options, Fresh) {
		missing, reads = l.rememberedMany(keys, found), l.reads
	}
	if len(missing) == 0 {
		return found, nil
	}
	if l.shadow != nil {
		return l.getManyStraight(ctx, missing, reads)
	}
	l.counters.Misses.Add(int64(len(missing)))
	ctx, end := l.observe(ctx, OpGet, len(missing))
	failed := l.getMany(ctx, "get", reads, missing, func(key K, s *fetch.Round) {
		if value, err := l.give(valueOf[V](s.Value), s.Null); err == nil {
			found[key] = value
		}
	})
	if len(failed) > 0 {
		err := &BatchError[K]{Errs: failed}
		end(err)
		return found, err
	}
	end(nil)
	return found, nil
}

// rememberedMany puts into found what the memory tier has of keys, and returns the others.
func (l *Loader[K, V]) rememberedMany(keys []K, found map[K]V) (missing []K) {
	for i, key := range keys {
		if item, ok := l.remembered(key); ok {
			if value, err := l.give(item.Value, item.Null); err == nil {
				found[key] = value
			}
			continue
		}
		if missing == nil {
			missing = make([]K, 0, len(keys)-i)
		}
		missing = append(missing, key)
	}
	return missing
}

// getMany waits for a round of each key, calls got for each that has succeeded, and returns the errors of the others.
func (l *Loader[K, V]) getMany(ctx context.Context, op string, group *reads[K], keys []K, got func(K, *fetch.Round)) (failed map[K]error) {
	if len(keys) == 0 {
		return nil
	}
	rounds, errs := group.DoMany(ctx, keys)
	for i, r := range rounds {
		err := errs[i]
		if err == nil {
			err = r.Err
		}
		if err == nil {
			got(keys[i], &r.Result)
			continue
		}
		if failed == nil {
			failed = make(map[K]error)
		}
		failed[keys[i]] = l.wrap(op, keys[i], err)
	}
	return failed
}

// Bypass switches the caches off for this loader, or on again, at run time: while on, Get and Refresh go straight to the database, still
// once for all who ask together, and nothing is stored or, but by Invalidate, removed: what was cached is served again
// afterwards. Rounds that are under way finish as they began.
func (l *Loader[K, V]) Bypass(on bool) {
	if on {
		l.aside.Or(bypassing)
	} else {
		l.aside.And(^uint32(bypassing))
	}
}

// The bits of aside.
const (
	bypassing = 1 << iota // all
	shadowing             // callers: see LoaderOptions.Shadow
	forgetful             // there is no memory tier
)

func (l *Loader[K, V]) bypassed() bool { return l.aside.Load()&bypassing != 0 }

// Stats returns this loader's counts.
func (l *Loader[K, V]) Stats() Stats {
	var s Stats
	l.addStats(&s)
	l.cache.addStats(&s)
	return s
}

func (l *Loader[K, V]) addStats(s *Stats) {
	s.addCounters(&l.counters)
	l.addLoads(s)
	if l.source.Broken() {
		s.BreakersOpen++
	}
	l.shadow.addTo(s)
}

// addLoads adds what the source counts.
func (l *Loader[K, V]) addLoads(s *Stats) {
	n := &l.source.Counters
	s.Loads += n.Loads.Load()
	s.LoadCalls += n.LoadCalls.Load()
	s.LoadErrors += n.LoadErrors.Load()
	s.LoadsLeft += n.LoadsLeft.Load()
	s.Unasked += n.Unasked.Load()
	s.Unavailable += n.Unavailable.Load()
}

func (l *Loader[K, V]) counts() *fetch.Counters { return &l.counters }

func (l *Loader[K, V]) close() {
	l.leaveFilter()
	l.fetch.Stop()
	l.shadow.close()
	l.stop(ErrClosed)
	var wg sync.WaitGroup
	wg.Go(func() { l.reads.Close(ErrClosed) })
	wg.Go(func() { l.fresh.Close(ErrClosed) })
	wg.Go(func() { l.warms.Close(ErrClosed) })
	wg.Go(func() { l.refreshes.Close(ErrClosed) })
	if l.shadow != nil {
		wg.Go(func() { l.straight.Close(ErrClosed) })
	}
	wg.Wait()
	l.shadow.wait()
	l.fetch.Wait()
}

// give is what a caller gets of a value, or of its absence.
func (l *Loader[K, V]) give(value V, null bool) (V, error) {
	switch {
	case null:
		return value, l.notFound
	case l.clone != nil:
		return l.clone(value), nil
	default:
		return value, nil
	}
}

// wrap says what failed, for which key.
func (l *Loader[K, V]) wrap(op string, key K, err error) error {
	text, _ := l.encodeKey(key) // if that is what failed, it is err
	return &Error{Op: op, Loader: l.name, Key: text, Hash: l.keys.Hash(text), Err: err}
}

func (l *Loader[K, V]) wrapAll(op string, keys []K, err error) error {
	errs := make([]error, len(keys))
	for i, key := range keys {
		errs[i] = l.wrap(op, key, err)
	}
	return errors.Join(errs...)
}
