package cacheaside

import (
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/lock"
)

// callAndStore loads the rows of rounds whose keys have entered the gate, under the loader's lock
// if it has one, and stores them. loaded is called in between, waiting when the load begins to wait
// for others.
func (b *batch[K, V]) callAndStore(rounds []*round[K, V], keys []K, loaded, waiting func()) {
	if b.l.options.Locker == nil {
		values := b.loadAll(rounds, keys, waiting)
		loaded()
		b.store(rounds, values)
		return
	}
	left := false
	defer func() {
		if !left {
			b.l.gate.leave(keys)
		}
	}()
	held, err := b.lock(rounds[0])
	if held != nil {
		defer b.unlock(held)
	}
	switch {
	case b.ctx.Err() != nil: // the callers have left
	case err != nil && b.l.options.MustLock:
		loaded()
		b.store(rounds, notMade[V](len(rounds), fmt.Errorf("%w: its lock: %w", ErrUnavailable, err)))
	case b.stillToLoad(rounds):
		left = true
		values := b.loadAll(rounds, keys, waiting)
		loaded()
		b.store(rounds, values)
	}
}

// lock takes the loader's lock of a row. If it cannot be had the load is made without it, as a rule: the lease is what keeps the promises.
func (b *batch[K, V]) lock(r *round[K, V]) (*lock.Lease, error) {
	name, _ := b.l.keys.Name(r.Result.text)
	held, err := b.l.options.Locker.Acquire(b.ctx, name, &lock.Options{Wait: b.l.cache.options.QueueTimeout, NoToken: true})
	if err != nil && b.ctx.Err() == nil {
		b.l.counters.unlocked.Add(1)
	}
	return held, err
}

func (b *batch[K, V]) unlock(held *lock.Lease) {
	if err := held.Release(); err != nil {
		b.l.counters.unlocked.Add(1)
	}
}

// stillToLoad looks once more at what a key holds, after its lock was waited for: its lease may have been ended by an invalidation meanwhile, and then another may have loaded it.
func (b *batch[K, V]) stillToLoad(rounds []*round[K, V]) bool {
	if s := &rounds[0].Result; s.alone || b.refresh {
		return true
	}
	b.l.cache.store.Read(b.ctx, &b.l.sizes, names(rounds), func(i int, held *lease.State, err error) {
		if err == nil { // else it is not known, and the fill will tell
			b.settle(rounds[i], held, nil)
		}
	})
	return len(at(rounds, toLoad)) == len(rounds)
}

// lockable tells whether the options are those of a loader whose rows can be locked one by one.
func (o LoaderOptions) lockable(batch bool) error {
	switch {
	case o.MustLock && o.Locker == nil:
		return errors.New("LoaderOptions.MustLock: there is no Locker")
	case batch && o.Locker != nil:
		return errors.New("LoaderOptions.Locker: a batch load is for many rows, and would need a lock of each; use NewLoader")
	}
	return nil
}
