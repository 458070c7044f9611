package cacheaside

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/flight"
)

// Refresh loads the value of key now, whatever is cached, stores it and returns it. The load begins after Refresh is called; those
// who Get meanwhile are served what is cached. If another process is loading the key, its load is waited for first. Refreshes of a
// key that are asked for while one is under way share the next.
//
// Use it for a change that no Invalidate has announced. It is not announced either: the memory of other processes may serve what was
// cached until its MemoryTTL. After a write, use Invalidate: a Refresh whose process is killed leaves what was
// cached. If the row is gone, Refresh stores that, and returns ErrNotFound. If Redis cannot be asked, or is lost
// before the value is stored, it returns ErrRedis. While the key is on hold (Options.ReplicaLag) it stores nothing, and what an Invalidate is just about to delete may still be read. Where invalidations keep coming between, the value is returned but not stored, as is one that is longer than LoaderOptions.MaxValueBytes, or whose key is on hold (Options.ReplicaLag). If a load fails, what was cached stays. Its other errors are those of Get.
func (l *Loader[K, V]) Refresh(ctx context.Context, key K) (V, error) {
	s, err := l.refreshes.Do(ctx, key)
	if err != nil {
		var none V
		return none, l.wrap("refresh", key, err)
	}
	return l.give(s.value, s.null)
}

// reload is one flight of Refreshes.
func (l *Loader[K, V]) reload(ctx context.Context, f *flight.Flight[K, state[V]]) {
	l.batchOf(ctx, f, true).run()
}
