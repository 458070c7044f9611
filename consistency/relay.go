package consistency

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Relay does the items of a Queue: it invalidates, or reloads, the key of each, and adds it to the
// filter of its loader as Loader.Inserting does. It tries an item until that has worked, however
// long it takes. Any number of relays may work on one queue, in one process or in many: an item is
// given to one of them at a time.
//
// A Relay tries an item that fails again 100 ms later, and then after twice as long each time, up
// to a minute. When Redis cannot be reached at all, each relay tries one item at a time, after
// 100 ms up to 2 s, until that works; then all that is due is done at once. An item that has failed
// RelayOptions.AlertAt times is alerted, and the Relay keeps trying it: a key that is given up is
// stale for ever.
//
// The Relay invalidates all keys that it has claimed in one call, which waits for no code of the
// user's. Then the items whose loader has a filter, and those that are to be reloaded, go to a
// worker of their loader. So a filter or a load function that hangs or panics delays only the items
// of its own loader, whose keys have been invalidated by then. For five minutes after that, the
// worker does items of the loader that have failed one at a time.
//
// An item that is to be reloaded is not invalidated first, unless its worker is busy or the item
// has failed before. If it cannot be reloaded it is invalidated.
type Relay struct {
	cache   relayed
	queue   Queue
	options RelayOptions
	running atomic.Bool
	counted counted
}

// invalidator is the part of a Cache that a Relay and a Writer use.
type invalidator interface {
	InsertingKeys(ctx context.Context, keys ...cacheaside.Key) (committed func(context.Context) error, err error)
	InvalidateKeys(ctx context.Context, keys ...cacheaside.Key) error
	RefreshKeys(ctx context.Context, keys ...cacheaside.Key) error
}

// relayed is the part of a Cache that a Relay uses.
type relayed interface {
	invalidator
	Closed() bool
	Loader(name string) (has, filter bool)
}

type inside = writeside.Cache[cacheaside.Key]

// NewRelay makes a Relay that does the items of queue with cache; both stay the caller's. options
// may be nil. Start it with Run.
func NewRelay(cache *cacheaside.Cache, queue Queue, options *RelayOptions) (*Relay, error) {
	if cache == nil {
		return nil, errors.New("consistency: NewRelay: cache is nil")
	}
	r, err := newRelay(struct {
		*cacheaside.Cache
		inside
	}{cache, writeside.Of(cache)}, queue, options)
	if err != nil {
		return nil, err
	}
	if err := bind(queue, cache); err != nil {
		return nil, fmt.Errorf("consistency: NewRelay: %w", err)
	}
	return r, nil
}

func newRelay(cache relayed, queue Queue, options *RelayOptions) (*Relay, error) {
	if queue == nil {
		return nil, errors.New("consistency: NewRelay: queue is nil")
	}
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("consistency: NewRelay: %w", err)
	}
	return &Relay{cache: cache, queue: queue, options: o}, nil
}

// Run works until ctx ends; then it returns nil. Run puts back the items that it has claimed and
// not done by then. That takes at most a third of RelayOptions.ClaimFor for items under way, and
// another third for the queue; items that it cannot put back are due again when their claim has run
// out. Run returns an error at once if the Relay is running already, and cacheaside.ErrClosed when
// its cache has been closed, which is alerted, too. Nothing else ends Run, not even a panic of a
// queue, a filter or a load function.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("consistency: the Relay is running already")
	}
	defer r.running.Store(false)
	r.count(func(c *counted) { c.Ended = false })
	run := newRelayRun(r)
	defer run.notified.Wait()
	defer close(run.gone)
	for ctx.Err() == nil && !run.closed {
		run.turn(ctx)
	}
	run.leave(ctx)
	if ctx.Err() != nil {
		return nil
	}
	r.count(func(c *counted) { c.Ended = true })
	run.notify(ctx, "cacheaside: a Relay has ended, and does nothing any more", Alert{Depth: r.depth(), Attempts: 1, Err: cacheaside.ErrClosed})
	return fmt.Errorf("consistency: the Relay: %w", cacheaside.ErrClosed)
}

const (
	// batch is the maximum number of items claimed at once. They cost Redis, and a database, some
	// milliseconds.
	batch = 500

	firstDelay   = 100 * time.Millisecond // after an item has failed once
	longestDelay = time.Minute            // after an item has failed often
	longestProbe = 2 * time.Second        // between attempts while Redis, or the queue, fails

	// idle is a pause until there is something to do.
	idle = -1
)

// relayRun is a Relay between the start of Run and its end. Only the goroutine of Run uses it.
type relayRun struct {
	*Relay
	workers map[workerName]*worker
	ended   chan *job            // receives each job when it ends
	gone    chan struct{}        // closed when nothing receives from ended any more
	hung    map[string]time.Time // when code of a loader last hung or panicked

	outage     int           // consecutive invalidations of which Redis took no key
	nextProbe  time.Duration // the pause after the last one of them
	lastDue    time.Time     // when an item was last claimed
	queueFails int           // consecutive failures of the queue
	closed     bool          // the cache is closed

	waiting     chan error // receives the end of the queue's Wait; nil: it is not running
	polls       bool       // the queue's Wait is not used, because it has panicked
	nextLook    time.Time
	nextUnknown time.Time // when the next item of an unknown loader may be due
	alarms
	notified limitedlog.Teller[Alert]
}

func newRelayRun(r *Relay) *relayRun {
	run := &relayRun{
		Relay: r, workers: map[workerName]*worker{}, ended: make(chan *job), gone: make(chan struct{}),
		hung: map[string]time.Time{},
	}
	run.alarms.init()
	run.notified.To, run.notified.Panicked = r.options.OnAlert, run.alertPanicked
	return run
}

// turn does one round. It waits a little for the workers, so that they are not given more than they
// can do, and then for something to do.
func (r *relayRun) turn(ctx context.Context) {
	pause := r.round(ctx)
	for until := r.busyUntil(); time.Now().Before(until) && r.wait(ctx, until, nil); {
		until = r.busyUntil()
	}
	r.look(ctx)
	r.rest(ctx, pause)
}

// round claims a batch, invalidates its keys, gives items to workers and gives the others back. It
// returns how long to pause then.
func (r *relayRun) round(ctx context.Context) (pause time.Duration) {
	most := batch
	if r.outage > 0 {
		most = 1
	}
	claimed := time.Now()
	items, err := r.claim(ctx, most)
	if err != nil {
		return r.queueFailed(ctx, err)
	}
	if len(items) == 0 {
		r.queueWorks()
		if time.Since(r.lastDue) > r.options.ClaimFor {
			r.nothingDue()
		}
		return idle
	}
	r.lastDue = claimed
	point("relaying")
	var o outcomes
	tried := r.distribute(ctx, &o, items, claimed)
	point("relayed")
	if err := r.giveBack(ctx, &o); err != nil {
		return r.queueFailed(ctx, err)
	}
	r.queueWorks()
	switch {
	case r.outage > 0 && tried:
		return r.nextProbe
	case len(items) < most:
		return idle
	}
	return 0
}

// distribute invalidates the keys of claimed items. Then it settles the items that need no code of
// the user's, and gives the others to workers. It reports whether it invalidated any key.
func (r *relayRun) distribute(ctx context.Context, o *outcomes, items []Item, claimed time.Time) (tried bool) {
	var tasks []task
	stale := map[cacheaside.Key]struct{}{} // a key may be in many items
	for _, item := range items {
		t := task{item, claimed}
		unknown := r.unknownLoader(&item)
		switch err := item.Key.Check(); {
		case err != nil:
			r.settle(ctx, o, t, err)
			continue
		case unknown != nil && item.Attempts > 0: // its key was invalidated at the first attempt
			r.settle(ctx, o, t, unknown)
			continue
		case !r.reloadsNow(&item):
			stale[item.Key] = struct{}{}
		}
		tasks = append(tasks, t)
	}
	failed := r.invalidate(ctx, stale, claimed.Add(r.options.ClaimFor*2/3))
	for _, t := range tasks {
		w, err := r.workerFor(&t.Item), failed[t.Key]
		if err == nil {
			err = r.unknownLoader(&t.Item)
		}
		switch {
		case err != nil || w == nil:
			r.settle(ctx, o, t, err)
		case len(w.queue) >= batch:
			r.postpone(o, w, t)
		default:
			w.queue = append(w.queue, t)
		}
	}
	for _, w := range r.workers {
		r.start(ctx, o, w)
	}
	return len(stale) > 0
}

// invalidate invalidates keys in one call, and returns those that have failed. It notes whether
// Redis can be reached.
func (r *relayRun) invalidate(ctx context.Context, stale map[cacheaside.Key]struct{}, until time.Time) map[cacheaside.Key]error {
	if len(stale) == 0 {
		return nil
	}
	limited, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	keys := slices.Collect(maps.Keys(stale))
	failed := leftOf(keys, r.cache.InvalidateKeys(limited, keys...))
	if ctx.Err() == nil {
		r.judgeRedis(ctx, keys, failed)
	}
	return failed
}
