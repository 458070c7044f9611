package consistency

import (
	"errors"
	"fmt"
	"log/slog"
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
// worker of their loader. A filter or a load function that hangs or panics delays the items of its
// own loader only; those of others once, by a tenth of RelayOptions.ClaimFor, if more than 1,000 of
// its own are due. Items that have failed are tried one at a time.
//
// An item that is to be reloaded is not invalidated first, unless its worker is busy or the item
// has failed before. If it cannot be reloaded it is invalidated; if its load function hangs, that
// is after 7/12 of ClaimFor.
type Relay struct {
	cache   relayed
	queue   Queue
	options RelayOptions
	log     *slog.Logger // is not ended by a panic of the user's handler
	running atomic.Bool
	counted counted
}

// relayed is the part of a Cache that a Relay uses.
type relayed interface {
	invalidator
	Closed() bool
	Loader(name string) (has, filter bool)
}

type writeSide = writeside.Cache[cacheaside.Key]

// NewRelay makes a Relay that does the items of queue with cache; both stay the caller's. options
// may be nil. Start it with Run.
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
	return &Relay{cache: cache, queue: queue, options: o, log: limitedlog.Guarded(o.Logger)}, nil
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
	ended   chan jobResult // receives from jobs
	gone    chan struct{}  // closed when nothing receives from ended any more

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
