package fetch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// lock takes the loader's lock of a row. If it cannot be had the load is made without it, as a
// rule: the lease is what keeps the promises.
func (b *batch) lock(r *Round) (unlock func() error, err error) {
	name, _ := b.fetcher.Keys.Name(r.text)
	err = b.fetcher.cache.Guard(func() (err error) {
		unlock, err = b.fetcher.Locker.Lock(b.ctx, name, b.fetcher.cache.QueueTimeout)
		return err
	})
	if unlock == nil && err == nil {
		err = errors.New("the Locker has returned neither a lock nor an error")
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

// stillToLoad looks once more at what a key holds, after its lock was waited for: its lease may
// have been ended by an invalidation meanwhile, and then another may have loaded it.
func (b *batch) stillToLoad(rounds []*Round) bool {
	if r := rounds[0]; r.withoutLease || b.refresh {
		return true
	}
	b.fetcher.cache.Store.Read(b.ctx, &b.fetcher.sizes, names(rounds), func(i int, state *lease.State, err error) {
		if err == nil { // else it is not known, and the fill will tell
			b.applyLookup(rounds[i], state, nil)
		}
	})
	return len(atStep(rounds, toLoad)) == len(rounds)
}

// renewLeases renews the leases of rounds at each third of their life until stop is called. A
// renewal that comes too late is harmless: it compares the token. If a lease is lost its load goes
// on, and the result will be refused.
func (b *batch) renewLeases(rounds []*Round) (stop func()) {
	var owned []*lease.Attempt
	for _, r := range rounds {
		if a := r.attempt; a != nil && a.Owns() {
			owned = append(owned, a.Renewal())
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
		f.background.Add(1) // before the flight ends, so before Close waits
		mu.Unlock()
		defer f.background.Done()
		once, cancel := context.WithTimeout(ctx, life/4) // so that there is time for another try
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
