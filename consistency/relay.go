package consistency

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// Relay does what is in a Queue: it invalidates, or reloads, the key of each item, again and again
// until that has worked, however long it takes. Filters of the cache's loaders are told of the keys
// first, as by cacheaside.Loader.Inserting. Any number of relays may work on one queue, in one
// process or in many: an item is given to one of them at a time.
//
// A Relay tries an item that fails again 100 ms later, and then after twice as long each time, up
// to a minute. When nothing at all works for want of Redis, each relay tries one item at a time,
// after 100 ms up to 2 s, until that works; then all that is due is done at once. An item that has
// failed RelayOptions.AlertAt times is alerted, and is tried on: a key that is given up is stale
// for ever.
//
// An item that is to be reloaded, and cannot be, is invalidated.
//
// A filter, or a load function, that hangs or panics keeps no other loader's items waiting. The
// items of its own loader are invalidated meanwhile, and the filter is told later. The Relay finds
// the keys that cause it by trying fewer of them together.
type Relay struct {
	cache    relayed
	queue    Queue
	options  RelayOptions
	running  atomic.Bool
	counters relayCounters
}

// invalidator is what a Relay, and a Writer, need of a Cache.
type invalidator interface {
	InsertingKeys(ctx context.Context, keys ...cacheaside.Key) (committed func(context.Context) error, err error)
	InvalidateKeys(ctx context.Context, keys ...cacheaside.Key) error
	RefreshKeys(ctx context.Context, keys ...cacheaside.Key) error
}

// relayed is a Cache as a Relay has it.
type relayed interface {
	invalidator
	Closed() bool
	Loader(name string) (has, filter bool)
}

type inside = writeside.Cache[cacheaside.Key]

// NewRelay makes a Relay that does what is in queue, by cache; both stay the caller's. options may
// be nil. Start it with Run.
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
	r.counters.ended.Store(false)
	s := newShift(r)
	defer close(s.gone)
	defer s.told.Wait()
	for ctx.Err() == nil && !s.closed {
		s.survive(ctx, s.turn)
	}
	s.survive(ctx, s.leave)
	if ctx.Err() != nil {
		return nil
	}
	s.counters.ended.Store(true)
	s.give(ctx, "cacheaside: a Relay has ended, and does nothing any more", Alert{Depth: s.counters.depth(), Attempts: 1, Err: cacheaside.ErrClosed})
	return fmt.Errorf("consistency: the Relay: %w", cacheaside.ErrClosed)
}

const (
	// batch is how many items are claimed at once. They cost Redis, and a database, some
	// milliseconds.
	batch = 500

	firstDelay   = 100 * time.Millisecond // after what has failed once
	longestDelay = time.Minute            // after an item that has failed often
	longestProbe = 2 * time.Second        // from one item to the next while Redis is out, and from one call of a queue that fails to the next

	// idle is a pause until there is something to do.
	idle = -1
)

// turn is a round, and the pause after it.
func (s *shift) turn(ctx context.Context) {
	pause := s.round(ctx)
	s.look(ctx)
	s.rest(ctx, pause)
}

// survive does one turn. A panic in it is counted, and taken for a failure of the queue.
func (s *shift) survive(ctx context.Context, turn func(context.Context)) {
	defer func() {
		if p := recover(); p != nil {
			s.counters.panics.Add(1)
			_ = retry.Sleep(ctx, s.queueFailed(ctx, &cacheaside.PanicError{Value: p, Stack: debug.Stack()}))
		}
	}()
	turn(ctx)
}

// round claims a batch, does it and gives it back, but for what takes long. It returns how long to
// pause then.
func (s *shift) round(ctx context.Context) (pause time.Duration) {
	most := batch
	if s.outage > 0 {
		most = 1
	}
	began := time.Now()
	items, err := s.claim(ctx, most)
	if err != nil {
		return s.queueFailed(ctx, err)
	}
	if len(items) == 0 {
		s.queueWorks()
		if time.Since(s.lastDue) > s.options.ClaimFor {
			s.nothingDue()
		}
		return idle
	}
	s.lastDue = began
	point("relaying")
	over, back := s.work(ctx, items, began)
	idles := len(back) == len(items)
	point("relayed")
	v := s.judge(ctx, over)
	v.back = append(v.back, back...)
	if err := s.giveBack(ctx, v); err != nil {
		return s.queueFailed(ctx, err)
	}
	s.queueWorks()
	switch {
	case s.outage > 0 && (v.tried > 0 || s.busy()):
		return s.nextProbe
	case idles: // all of it is for lanes that are busy; what there is may be just that
		return firstDelay
	case len(items) < most:
		return idle
	default:
		return 0
	}
}

// claim has a third of a claim's life; what it is for has another one, and so has the giving back:
// so nobody else has the items before.
func (s *shift) claim(ctx context.Context, most int) (items []Item, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.ClaimFor/3)
	defer cancel()
	err = s.ask(func() (err error) {
		items, err = s.queue.Claim(ctx, most, s.options.ClaimFor)
		return err
	})
	return items, err
}
