package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/mutant"
)

// Loader reads rows of one kind through a Cache: from this process's memory, else from Redis, else by its load function. It is safe
// for concurrent use. Its goroutines end with Cache.Close.
type Loader[K comparable, V any] struct {
	cache     *Cache
	name      string
	id        uint32 // among the loaders of the cache
	options   LoaderOptions
	load      func(context.Context, K) (V, error)
	encodeKey func(K) (string, error)
	keyPrefix string // of its keys in Redis, up to the opening brace
	seed      maphash.Seed
	memory    *local.Tier // nil: not used by this loader

	bypass   atomic.Bool
	counters counters
	loadTime loadTime

	reads      *flight.Group[K, result[V]]
	refreshes  *flight.Group[K, result[V]]
	background sync.WaitGroup // renewals, and what nobody waits for

	loadingMu sync.Mutex
	loading   map[K]chan struct{} // closed when the key's load has ended
}

// NewLoader makes the Loader called name in c. The name is part of its keys in Redis, so the loaders of one cache have different ones:
// letters, digits, "_", "." and "-". K is a string, an integer, or an encoding.TextMarshaler (whose text must differ between
// keys that differ); V is anything that encoding/json takes there and back. nil options are the defaults.
//
// load reads one row from the database. It returns ErrNotFound or sql.ErrNoRows for a row that does not exist, which is cached
// too. It must read what has been committed: not from within a transaction of the caller's, nor from a lagging replica. What it
// asks of another loader must not pass on that one's ErrNotFound unless this row is missing then, and it must not ask this loader for
// the same key, for which it would wait in vain. It runs on a
// goroutine of its own, for all who ask for the key at the time; its context carries the values of the first caller's
// context, but not its cancellation: it ends after LoadTimeout, when the last of them has left, or at Close. A panic in it becomes
// a *PanicError.
func NewLoader[K comparable, V any](c *Cache, name string, load func(ctx context.Context, key K) (V, error), options *LoaderOptions) (*Loader[K, V], error) {
	l := &Loader[K, V]{cache: c, name: name, options: options.withDefaults(), load: load, seed: maphash.MakeSeed(), loading: make(map[K]chan struct{})}
	err := l.options.check()
	if err == nil {
		l.encodeKey, err = keyEncoder[K]()
	}
	switch {
	case c == nil:
		return nil, fmt.Errorf("cacheaside: loader %q: the cache is nil", name)
	case load == nil:
		return nil, fmt.Errorf("cacheaside: loader %q: the load function is nil", name)
	case !validName(name):
		return nil, fmt.Errorf("cacheaside: loader %q: only letters, digits, '_', '.' and '-' in a name", name)
	case err != nil:
		return nil, fmt.Errorf("cacheaside: loader %q: %w", name, err)
	}
	l.keyPrefix = fmt.Sprintf("%s:%s:%s:0:{", c.options.Prefix, name, l.options.Version)
	if l.options.MemoryTTL > 0 {
		l.memory = c.memory
	}
	l.reads = flight.New(l.read, l.current, caught)
	l.refreshes = flight.New(l.reload, func(result[V]) bool { return mutant.Active == mutant.LateRefresh }, caught) // each loads anew
	if l.id, err = c.add(name, l); err != nil {
		return nil, fmt.Errorf("cacheaside: loader %q: %w", name, err)
	}
	return l, nil
}

// Get returns the value of key, or ErrNotFound if there is no such row. The value may be shared with other callers: do not change
// what it points to.
//
// ctx ends only this caller's wait, within milliseconds, even when Redis hangs. Errors are wrapped in an *Error: ctx's own, the load's, a
// *PanicError, ErrLoadFailed, ErrLoadTimeout, ErrClosed. When Redis is out of reach or in trouble, the value is loaded, once for all
// who ask in this process at the time, and stored nowhere (Stats.Unvalidated counts it).
//
// After Invalidate has returned nil in this process, no Get that starts here receives a value that was read before. In other
// processes that holds for loaders without the memory tier; with it, they may serve such a value for LoaderOptions.MemoryTTL.
func (l *Loader[K, V]) Get(ctx context.Context, key K) (V, error) {
	if item, ok := l.remembered(key); ok {
		if item.Null {
			l.counters.memoryNulls.Add(1)
			return item.Value, ErrNotFound
		}
		return item.Value, nil
	}
	l.counters.misses.Add(1)
	r, err := l.reads.Do(ctx, key)
	return l.answer("get", key, r, err)
}

// read is one round of Gets of one key: all its callers asked before it begins.
func (l *Loader[K, V]) read(ctx context.Context, key K) (result[V], error) {
	r, err := l.begin(key)
	if err != nil {
		return result[V]{}, err
	}
	if r.attempt == nil {
		return r.loadAlone(ctx)
	}
	defer r.end(ctx)
	for {
		state, err := r.attempt.Read(ctx)
		if state.Kind == lease.Absent && err == nil {
			state, err = r.attempt.Take(ctx, nil) // the second check, and the lease if there is still nothing
		}
		if state.Kind == lease.Stored {
			if out, ok := r.decode(state.Entry); ok {
				return out, nil
			}
			state.Kind = lease.Unknown
		}
		if state.Kind == lease.Unknown && err == nil {
			l.counters.undecodable.Add(1)
			state, err = r.attempt.Take(ctx, state.Raw) // in its place, if it is still there
		}
		switch {
		case err != nil:
			return r.withoutRedis(ctx, err)
		case state.Kind == lease.Mine:
			if out, done, err := r.fill(ctx); done {
				return out, err
			}
		case state.Kind == lease.Failed:
			l.counters.failedByMark.Add(1)
			return result[V]{}, ErrLoadFailed
		case state.Kind == lease.Busy:
			if mutant.Active == mutant.Impatient {
				return r.loadAlone(ctx)
			}
			if err := r.wait(ctx); err != nil {
				return result[V]{}, err
			}
		}
	}
}

// Refresh loads the value of key now, whatever is cached, stores it and returns it. The load begins after Refresh is called; those
// who Get meanwhile are served what is cached. If another process is loading the key, its load is waited for first. Refreshes of a
// key that are asked for while one is under way share the next.
//
// Use it for a change that no Invalidate has announced. After a write, use Invalidate: a Refresh whose process is killed leaves what was
// cached. If the row is gone, Refresh stores that, and returns ErrNotFound. If Redis cannot be asked, or is lost
// before the value is stored, it returns ErrRedis. Where invalidations keep coming between, the value is returned but not stored. If a load fails, what was cached stays. Its other errors are those of Get.
func (l *Loader[K, V]) Refresh(ctx context.Context, key K) (V, error) {
	r, err := l.refreshes.Do(ctx, key)
	return l.answer("refresh", key, r, err)
}

// reload is one round of Refreshes of one key.
func (l *Loader[K, V]) reload(ctx context.Context, key K) (result[V], error) {
	r, err := l.begin(key)
	if err != nil {
		return result[V]{}, err
	}
	r.refresh = true
	if r.attempt == nil {
		return r.loadAlone(ctx)
	}
	defer r.end(ctx)
	for {
		state, err := r.attempt.Claim(ctx)
		switch {
		case err != nil:
			if ctx.Err() != nil {
				return result[V]{}, r.stopped(ctx)
			}
			r.count(err)
			return result[V]{}, redisError(err)
		case state.Kind == lease.Mine:
			if out, done, err := r.fill(ctx); done {
				return out, err
			}
		default:
			if err := r.wait(ctx); err != nil {
				return result[V]{}, err
			}
		}
	}
}

// Invalidate removes keys from Redis and from this process's memory, after their rows have changed: commit, then Invalidate. Once it
// has returned nil, no value that was read from the database before is stored anywhere, whatever was under way (in the memory of
// other processes, for no longer than LoaderOptions.MemoryTTL).
//
// If it returns an error, some keys may still be cached as they were; which, tell the *Errors in it (one, or joined), whose causes
// are ErrRedis and the client's error, or ctx's error. Try again: it is idempotent. It ends with ctx; with a ctx that has no
// deadline, or a later one, after four times Options.RedisTimeout. After a write has been committed, do not pass a ctx that the user's
// departure cancels: context.WithoutCancel.
func (l *Loader[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	if l.reads.Closed() {
		return l.wrapAll("invalidate", keys, ErrClosed)
	}
	var errs []error
	valid := make([]K, 0, len(keys))
	encoded := make([]string, 0, len(keys))
	names := make([]string, 0, len(keys))
	for _, key := range keys {
		text, err := l.encodeKey(key)
		if err != nil {
			errs = append(errs, l.wrap("invalidate", key, err))
			continue
		}
		valid, encoded, names = append(valid, key), append(encoded, text), append(names, l.redisKey(text))
	}
	forget := func() {
		for i, key := range valid {
			l.forget(key, encoded[i])
		}
	}
	if mutant.Active == mutant.BumpFirst {
		forget()
	}
	if l.cache.store != nil && len(names) > 0 {
		for i, err := range l.cache.store.Delete(ctx, names) {
			if err != nil {
				l.counters.redisErrors.Add(1)
				errs = append(errs, l.wrap("invalidate", valid[i], redisError(err)))
			}
		}
	}
	if mutant.Active != mutant.BumpFirst {
		forget() // after Redis, or a reader would fill memory again from there
	}
	l.counters.invalidateErrors.Add(int64(len(errs)))
	l.counters.invalidated.Add(int64(len(keys) - len(errs)))
	return errors.Join(errs...)
}

// Bypass switches the caches off for this loader, or on again, at run time: while on, Get and Refresh go straight to the database, still
// once for all who ask together, and nothing is stored or, but by Invalidate, removed: what was cached is served again
// afterwards. Rounds that are under way finish as they began.
func (l *Loader[K, V]) Bypass(on bool) { l.bypass.Store(on) }

// Stats returns this loader's counts.
func (l *Loader[K, V]) Stats() Stats {
	var s Stats
	l.addStats(&s)
	return s
}

func (l *Loader[K, V]) addStats(s *Stats) { l.counters.addTo(s) }

func (l *Loader[K, V]) close() {
	l.counters.memory.close()
	var wg sync.WaitGroup
	wg.Go(func() { l.reads.Close(ErrClosed) })
	wg.Go(func() { l.refreshes.Close(ErrClosed) })
	wg.Wait()
	l.background.Wait()
}

// redisKey is the name of a key in Redis; what is derived from it shares its braces, and so its slot.
func (l *Loader[K, V]) redisKey(encoded string) string { return l.keyPrefix + tag(encoded) + "}" }

// answer turns what a round has given into what its callers get.
func (l *Loader[K, V]) answer(op string, key K, r result[V], err error) (V, error) {
	var zero V
	switch {
	case err != nil:
		return zero, l.wrap(op, key, err)
	case r.null:
		return zero, ErrNotFound
	default:
		return r.value, nil
	}
}

// wrap says what failed, for which key.
func (l *Loader[K, V]) wrap(op string, key K, err error) error {
	encoded, _ := l.encodeKey(key) // if that is what failed, it is err
	return &Error{Op: op, Loader: l.name, Key: encoded, Hash: stableHash(l.name, encoded), Err: err}
}

func (l *Loader[K, V]) wrapAll(op string, keys []K, err error) error {
	errs := make([]error, len(keys))
	for i, key := range keys {
		errs[i] = l.wrap(op, key, err)
	}
	return errors.Join(errs...)
}
