package consistency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
)

// Relay does what is in a Queue: it invalidates, or reloads, the key of each item, again and again until that has worked, however long it takes. Filters of the cache's loaders are told of the keys first, as by
// cacheaside.Loader.Admit. Any number of relays may work on one queue, in one process or in many: an item is given to one of them at a time.
//
// What fails is tried again 100 ms later, and then after twice as long each time, up to a minute. When nothing at all works for want of Redis, each relay tries one item at a time, after 100 ms up to 2 s, until that
// works; then all that is due is done at once. What has failed RelayOptions.AlertAt times is alerted, and is tried on: what is given up is stale for ever.
//
// An item that is to be reloaded, and cannot be, is invalidated.
type Relay struct {
	cache    invalidator
	queue    Queue
	options  RelayOptions
	running  atomic.Bool
	counters relayCounters
}

// invalidator is what a Relay needs of a Cache.
type invalidator interface {
	AdmitKeys(ctx context.Context, keys ...cacheaside.Key) (committed func(context.Context) error, err error)
	InvalidateKeys(ctx context.Context, keys ...cacheaside.Key) error
	RefreshKeys(ctx context.Context, keys ...cacheaside.Key) error
}

// NewRelay makes the worker that does what is in queue, by cache; both stay the caller's. options may be nil. Run it with Run.
func NewRelay(cache *cacheaside.Cache, queue Queue, options *RelayOptions) (*Relay, error) {
	if cache == nil {
		return nil, errors.New("consistency: NewRelay: cache is nil")
	}
	r, err := newRelay(cache, queue, options)
	if err != nil {
		return nil, err
	}
	if err := bind(queue, cache); err != nil {
		return nil, fmt.Errorf("consistency: NewRelay: %w", err)
	}
	return r, nil
}

func newRelay(cache invalidator, queue Queue, options *RelayOptions) (*Relay, error) {
	if queue == nil {
		return nil, errors.New("consistency: NewRelay: queue is nil")
	}
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("consistency: NewRelay: %w", err)
	}
	return &Relay{cache: cache, queue: queue, options: o}, nil
}

// Run works until ctx ends; then it returns nil. What it has claimed and not done by then it puts back, which takes as long as the queue does, a third of RelayOptions.ClaimFor at most; what it cannot put
// back is due again when its claim has run out. It returns an error at once if the Relay is running already, and cacheaside.ErrClosed when the cache has been closed.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("consistency: the Relay is running already")
	}
	defer r.running.Store(false)
	s := &shift{Relay: r}
	defer s.alerting.Wait()
	for ctx.Err() == nil {
		pause, err := s.round(ctx)
		if err != nil {
			return fmt.Errorf("consistency: the Relay: %w", err)
		}
		s.look(ctx)
		s.rest(ctx, pause)
	}
	return nil
}

const (
	// batch is how many items are claimed at once. They cost Redis, and a database, some milliseconds.
	batch = 500

	firstDelay   = 100 * time.Millisecond // after what has failed once
	longestDelay = time.Minute            // after an item that has failed often
	longestProbe = 2 * time.Second        // from one item to the next while Redis is out, and from one call of a queue that fails to the next

	// idle is a pause until there is something to do.
	idle = -1
)

// round claims a batch, does it and gives it back. It answers how long to pause then.
func (s *shift) round(ctx context.Context) (pause time.Duration, err error) {
	most := batch
	if s.outage > 0 {
		most = 1
	}
	began := time.Now()
	// A third of a claim's life each for having it, for what it is for, and for giving it back: so nobody else has the items before.
	claiming, cancel := context.WithTimeout(ctx, s.options.ClaimFor/3)
	items, err := s.queue.Claim(claiming, most, s.options.ClaimFor)
	cancel()
	if err != nil {
		return s.queueFailed(ctx, err), nil
	}
	if len(items) == 0 {
		s.queueWorks()
		if time.Since(s.lastDue) > s.options.ClaimFor {
			s.nothingDue()
		}
		return idle, nil
	}
	s.lastDue = began
	doing, cancel := context.WithDeadline(ctx, began.Add(s.options.ClaimFor*2/3))
	point("relaying")
	errs := s.do(doing, items)
	cancel()
	point("relayed")
	v := s.judge(ctx, items, errs)
	failed := s.giveBack(ctx, v, began)
	switch {
	case v.closed:
		return 0, cacheaside.ErrClosed
	case failed != nil:
		return s.queueFailed(ctx, failed), nil
	}
	s.queueWorks()
	switch {
	case s.outage > 0 && v.tried > 0:
		return s.nextProbe, nil
	case len(items) < most:
		return idle, nil
	default:
		return 0, nil
	}
}

// rest pauses, until ctx ends at most.
func (s *shift) rest(ctx context.Context, pause time.Duration) {
	if pause == idle {
		pause = s.options.Poll
		if q, ok := s.queue.(interface{ Wait(context.Context) }); ok {
			ctx, cancel := context.WithTimeout(ctx, betweenLooks)
			defer cancel()
			q.Wait(ctx)
			return
		}
	}
	if pause == 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// delay is how long to wait after something has failed n times: it doubles, up to most, and half of it is by chance, so that what has failed together does not come back together. ("Equal jitter": Marc Brooker,
// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.)
func delay(n int, most time.Duration) time.Duration {
	d := most
	if n < 20 { // which is a day, and no overflow
		d = min(most, firstDelay<<(n-1))
	}
	return d/2 + rand.N(d/2+1)
}
