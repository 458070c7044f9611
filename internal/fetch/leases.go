package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

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
	l := b.l
	ctx, life := context.WithoutCancel(b.ctx), l.cache.LeaseTTL
	var mu sync.Mutex
	stopped := false
	var timer *time.Timer
	renew := func() {
		mu.Lock()
		if stopped {
			mu.Unlock()
			return
		}
		l.background.Add(1) // before the flight ends, so before Close waits
		mu.Unlock()
		defer l.background.Done()
		once, cancel := context.WithTimeout(ctx, life/4) // so that there is time for another try
		still, err := l.cache.Store.Renew(once, owned)
		cancel()
		l.CountWrite(err)
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
