package cacheaside

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// Invalidate removes keys from Redis and from this process's memory, after their rows have changed: commit, then Invalidate. Once it
// has returned nil, no value that was read from the database before is stored anywhere, whatever was under way (in the memory of
// other processes, for no longer than LoaderOptions.MemoryTTL).
//
// A row that feeds several loaders needs the Invalidate of each. If Commit itself fails without a clear answer, as when the connection is
// lost, the row may have changed: Invalidate then, too.
//
// If it returns an error, some keys may still be cached as they were; which, tell the *Errors in it (one, or joined), whose causes
// are ErrRedis and the client's error, or ctx's error. Try it again, not the write: Invalidate may be repeated. It ends with ctx; with a ctx that has no
// deadline, or a later one, after four times Options.RedisTimeout. After a write has been committed, do not pass a ctx that the user's
// departure cancels: context.WithoutCancel.
func (l *Loader[K, V]) Invalidate(ctx context.Context, keys ...K) error {
	if l.reads.Closed() {
		return l.wrapAll("invalidate", keys, ErrClosed)
	}
	var errs []error
	valid := make([]K, 0, len(keys))
	texts := make([]string, 0, len(keys))
	names := make([]string, 0, len(keys))
	for _, key := range keys {
		text, err := l.encodeKey(key)
		if err != nil {
			errs = append(errs, l.wrap("invalidate", key, err))
			continue
		}
		name, _ := l.keys.Name(text)
		valid, texts, names = append(valid, key), append(texts, text), append(names, name)
	}
	forget := func() {
		for i, key := range valid {
			l.forget(key, texts[i])
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
