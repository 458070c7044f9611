package fetch

import (
	"errors"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// lock acquires the loader's lock of a row. If that fails, the row is loaded without the lock,
// unless MustLock is set: the lease alone ensures consistency.
func (b *batch) lock(r *Round) (unlock func() error, err error) {
	name, _ := b.fetcher.Keys.Name(r.text)
	err = b.fetcher.cache.Guard(func() (err error) {
		unlock, err = b.fetcher.Locker.Lock(b.ctx, name, b.fetcher.cache.QueueTimeout)
		return err
	})
	if unlock == nil && err == nil {
		err = errors.New("the Locker returned neither a lock nor an error")
	}
	if err != nil && b.ctx.Err() == nil {
		b.fetcher.Counters.Unlocked.Add(1)
	}
	return unlock, err
}

func (b *batch) unlock(unlock func() error) {
	if b.fetcher.cache.Guard(unlock) != nil {
		b.fetcher.Counters.Unlocked.Add(1)
	}
}

// stillToLoad reads the key again after the wait for its lock, and reports whether it must still
// be loaded. An invalidation may have removed the lease during the wait, and another process may
// have loaded the key since. While Redis is down, the load goes ahead.
func (b *batch) stillToLoad(rounds []*Round) bool {
	if r := rounds[0]; r.withoutLease || b.refresh {
		return true
	}
	if b.fetcher.cache.Conn.Down(int(rounds[0].slotRange)) != nil {
		return true
	}
	b.fetcher.cache.Store.Read(b.ctx, &b.fetcher.sizes, names(rounds), func(i int, state *lease.State, err error) {
		if err == nil { // after an error the load goes ahead: the store checks the lease
			b.applyLookup(rounds[i], state, nil)
		}
	})
	return len(atStep(rounds, toLoad)) == len(rounds)
}
