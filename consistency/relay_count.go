package consistency

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
)

const (
	registerEvery = 10 * time.Second // the mean interval between two registrations
	registeredFor = 30 * time.Second // how long a killed relay is counted
	identifyEvery = 10 * time.Minute // the server of the queue may have become another
)

// countRelays counts the relays that share the queue until stop is called. stop waits a limited
// time for it to end.
func (r *relayRun) countRelays(ctx context.Context) (stop func()) {
	queue, ok := r.queue.(QueueIdentity)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := protect(func() error { r.keepRegistered(ctx, queue); return nil })
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(r.options.ClaimFor / 3): // the queue ignores its context
		}
	}
}

// keepRegistered registers this relay, and records how many there are, until ctx ends. While Redis
// is unreachable the last number stays valid.
func (r *relayRun) keepRegistered(ctx context.Context, queue QueueIdentity) {
	id, identity := NewID(), ""
	var identifyAt time.Time
	failing := false
	for ctx.Err() == nil {
		var err error
		if now := time.Now(); !now.Before(identifyAt) {
			err = r.callQueue(ctx, func(ctx context.Context) error {
				current, err := queue.Identity(ctx)
				if err == nil {
					identity, identifyAt = current, now.Add(identifyEvery)
				}
				return err
			})
		}
		if identity != "" {
			n, notCounted := r.cache.CountRelays(ctx, identity, id, registeredFor)
			if notCounted == nil {
				r.count(func(c *counted) { c.Relays = n })
			}
			err = cmp.Or(err, notCounted)
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil && !failing {
			r.log.Warn("cacheaside: a Relay cannot count the relays of its queue, and polls as often as before",
				"relays", r.relays(), "err", err)
		}
		failing = err != nil
		_ = retry.Sleep(ctx, registerEvery/2+rand.N(registerEvery))
	}
	if identity != "" && !failing { // processes that end early must not slow down those that stay
		_, _ = r.cache.CountRelays(context.WithoutCancel(ctx), identity, id, 0)
	}
}

// relays returns how many relays share the queue, or 0 if that is unknown.
func (r *Relay) relays() int {
	r.counted.Lock()
	defer r.counted.Unlock()
	return r.counted.Relays
}
