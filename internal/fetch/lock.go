package fetch

import (
	"context"
	"errors"
	"sync"
	"time"

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

// renewLeases renews the leases of rounds after each third of their duration, until stop is
// called. A renewal that arrives after the lease has ended does no harm, because its script
// compares the token. If a lease is lost, its load continues, and Redis refuses to store the
// result.
func (b *batch) renewLeases(rounds []*Round) (stop func()) {
	copies := make([]lease.Attempt, 0, len(rounds))
	owned := make([]*lease.Attempt, 0, len(rounds))
	for _, r := range rounds {
		if a := r.attempt; a != nil && a.Owns() {
			copies = append(copies, a.Renewal())
			owned = append(owned, &copies[len(copies)-1])
		}
	}
	if len(owned) == 0 {
		return func() {}
	}
	f := b.fetcher
	ctx, life := context.WithoutCancel(b.ctx), f.cache.LeaseTTL
	var mu sync.Mutex
	stopped := false
	var timer *time.Timer
	renew := func() {
		mu.Lock()
		if stopped {
			mu.Unlock()
			return
		}
		f.background.Add(1) // before the flight ends, so that Close waits for it
		mu.Unlock()
		defer f.background.Done()
		once, cancel := context.WithTimeout(ctx, life/4) // leaves time for another attempt
		still, err := f.cache.Store.Renew(once, owned)
		cancel()
		f.CountWrite(err)
		mu.Lock()
		defer mu.Unlock()
		owned = still
		switch {
		case stopped, len(owned) == 0:
		case err != nil:
			timer.Reset(life / 20)
		default:
			timer.Reset(life / 3)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(life/3, renew)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}
