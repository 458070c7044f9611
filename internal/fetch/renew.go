package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// A renewal renews leases while their rows are loaded and stored.
type renewal struct {
	fetcher *Fetcher
	ctx     context.Context

	mu       sync.Mutex
	attempts []*lease.Attempt // copies of those that own a lease
	timer    *time.Timer
	stopped  bool
}

// renewLeases renews the leases of rounds after each third of their duration, until stop is
// called. A renewal that arrives after the lease has ended does no harm, because its script
// compares the token. If a lease is lost, its load continues, and Redis refuses to store the
// result.
func (b *batch) renewLeases(rounds []*Round) (stop func()) {
	attempts := renewals(rounds)
	if len(attempts) == 0 {
		return func() {}
	}
	r := &renewal{fetcher: b.fetcher, ctx: context.WithoutCancel(b.ctx), attempts: attempts}
	r.mu.Lock() // until timer is set
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(b.fetcher.cache.LeaseTTL/3, r.renew)
	return r.stop
}

// renewals returns copies of the attempts of rounds that own a lease.
func renewals(rounds []*Round) []*lease.Attempt {
	copies := make([]lease.Attempt, 0, len(rounds))
	attempts := make([]*lease.Attempt, 0, len(rounds))
	for _, r := range rounds {
		if a := r.attempt; a != nil && a.Owns() {
			copies = append(copies, a.Renewal())
			attempts = append(attempts, &copies[len(copies)-1])
		}
	}
	return attempts
}

// renew renews the leases once, and schedules the next renewal.
func (r *renewal) renew() {
	if !r.begin() {
		return
	}
	defer r.fetcher.background.Done()
	ttl := r.fetcher.cache.LeaseTTL
	ctx, cancel := context.WithTimeout(r.ctx, ttl/4) // leaves time for another attempt
	owned, err := r.fetcher.cache.Store.Renew(ctx, r.attempts)
	cancel()
	r.fetcher.CountWrite(err)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts = owned
	switch {
	case r.stopped, len(owned) == 0:
	case err != nil:
		r.timer.Reset(ttl / 20)
	default:
		r.timer.Reset(ttl / 3)
	}
}

// begin reports whether the leases should still be renewed. If so, Close of the fetcher waits until
// renew has returned: begin adds renew to the background work before the flight ends.
func (r *renewal) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.fetcher.background.Add(1)
	}
	return !r.stopped
}

func (r *renewal) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.timer.Stop()
}
