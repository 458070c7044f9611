package cacheaside

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// keepAlive renews the round's lease at each third of its life until stop is called. A renewal that comes too late is harmless: it
// compares the token. If the lease is lost the load goes on, and its result will be refused.
func (r *round[K, V]) keepAlive(ctx context.Context) (stop func()) {
	if mutant.Active == mutant.NoRenewal {
		return func() {}
	}
	l := r.l
	ctx = context.WithoutCancel(ctx)
	renewal, life := r.attempt.Renewal(), l.cache.options.LeaseTTL
	var mu sync.Mutex
	stopped := false
	var timer *time.Timer
	renew := func() {
		mu.Lock()
		if stopped {
			mu.Unlock()
			return
		}
		l.background.Add(1) // before the round ends, so before Close waits
		mu.Unlock()
		defer l.background.Done()
		once, cancel := context.WithTimeout(ctx, life/4) // so that there is time for another try
		held, err := renewal.Renew(once)
		cancel()
		r.count(err)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case stopped:
		case err != nil:
			timer.Reset(life / 20)
		case held:
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
