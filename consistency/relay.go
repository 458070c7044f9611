package consistency

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// A Relay handles the items of a Queue: it invalidates or reloads the key of each item, and adds
// it to the filter of its loader as Loader.Inserting does. It retries an item until it succeeds,
// without a limit. Any number of relays, in any number of processes, can share a queue: only one
// of them has claimed an item at a time. Relays of a queue with a QueueIdentity count each other in
// Redis, and more than five of them together poll it about as often as five (RelayOptions.Poll).
//
// A Relay retries a failed item after 100 ms, and doubles the delay with each failure, up to a
// minute. While Redis is down, each relay tries one item at a time, after delays of 100 ms up to
// 2 s. When an attempt succeeds, it handles all due items at once. An item that has failed
// RelayOptions.AlertAt times raises an alert. The Relay continues to retry it, because an
// abandoned key would stay stale.
//
// The Relay first invalidates all keys that it has claimed in one call, which waits for no user
// code. Then it passes the items whose loader has a filter, and those to be reloaded, to a worker
// of their loader. A filter or a load function that hangs or panics delays only items of its own
// loader. One exception: if more than 1,000 items of that loader are due, other items wait once,
// for a tenth of RelayOptions.ClaimFor. For five minutes after a hang or a panic, failed items of
// that loader are retried one at a time, because one of them may be the reason.
//
// A key that is to be reloaded is not invalidated first, unless its worker is busy or the item has
// failed before. Instead, the Relay asks the filter and then reloads the key. Both together have a
// third of ClaimFor, the filter at most half of that. If the reload fails or takes longer, the key
// is invalidated then. If the filter or the load function ignores its context, the Relay gives up
// after 7/12 of ClaimFor, and invalidates the key at the first retry, up to 100 ms later.
type Relay struct {
	cache   cacheAPI
	queue   Queue
	hooks   QueueHooks // nil: the queue has none
	options RelayOptions
	log     *slog.Logger // recovers from panics of the user's handler, and counts them
	running atomic.Bool
	counted counted
}

// cacheAPI is the part of a Cache that a Relay uses.
type cacheAPI interface {
	invalidator
	Closed() bool
	Loader(name string) (has, filter bool)
	CountRelays(ctx context.Context, queue, id string, life time.Duration) (int, error)
}

type writeSide = writeside.Cache[cacheaside.Key]

// NewRelay returns a Relay that handles the items of queue with cache. The caller closes both.
// options can be nil. Call Run to start it.
func NewRelay(cache *cacheaside.Cache, queue Queue, options *RelayOptions) (*Relay, error) {
	if cache == nil {
		return nil, errors.New("consistency: NewRelay: cache is nil")
	}
	r, err := newRelay(struct {
		*cacheaside.Cache
		writeSide
	}{cache, writeside.Of(cache)}, queue, options)
	if err != nil {
		return nil, err
	}
	if r.hooks != nil {
		if err := r.hooks.Bind(writeside.Of(cache).Prefix(), nil); err != nil {
			return nil, wording.Errorf("consistency: NewRelay: %w", err)
		}
	}
	return r, nil
}

func newRelay(cache cacheAPI, queue Queue, options *RelayOptions) (*Relay, error) {
	if queue == nil {
		return nil, errors.New("consistency: NewRelay: queue is nil")
	}
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, wording.Errorf("consistency: NewRelay: %w", err)
	}
	r := &Relay{cache: cache, queue: queue, options: o}
	r.hooks, _ = queue.(QueueHooks)
	r.log = limitedlog.GuardedFunc(o.Logger, func() { r.count(func(c *counted) { c.Panics++ }) })
	return r, nil
}

const (
	// batch is the maximum number of items claimed at once. Handling them takes Redis, and a
	// database, some milliseconds.
	batch = 500

	firstDelay   = 100 * time.Millisecond // after the first failure of an item
	longestDelay = time.Minute            // the maximum delay of an item
	longestProbe = 2 * time.Second        // the maximum delay between attempts while Redis or the queue fails

	// idle is a pause until the queue has something to do. It depends on how many relays share the
	// queue. found is that of a lone relay: a claim has returned items, and more may follow.
	idle, found = -1, -2
)

// A relayRun is the state of one call of Run. Only the goroutine of Run uses it.
type relayRun struct {
	*Relay
	workers   map[workerName]*worker
	troubleAt map[string]time.Time // when code of a loader has last hung, been late or panicked
	ended     chan jobResult       // receives from jobs
	stopped   chan struct{}        // closed when Run no longer receives from ended

	outage     int           // consecutive invalidations for which Redis was unreachable
	nextProbe  time.Duration // the pause after the last failed invalidation
	lastDue    time.Time     // when an item was last claimed
	queueFails int           // consecutive failures of the queue
	depthFails int           // consecutive failures to read its depth
	closed     bool          // the cache is closed

	wait          func(context.Context) // waits until an item may be due; nil: the queue is polled
	listens       bool                  // wait is that of QueueHooks.Listen
	waiting       chan error            // receives when wait returns; nil: it is not running
	stopWaiting   context.CancelFunc    // ends the call of wait
	nextDepthRead time.Time
	unknownDue    time.Time // when the next item of an unknown loader may be due
	alarms
	notified limitedlog.Notifier[Alert]
}
