package consistency

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cacheaside/cacheaside"
)

// A Level determines what a write guarantees about the caches. From Inline on, each level
// includes the one before it. docs/guides/writing.md says which level wins which race, and what
// each costs.
type Level uint8

const (
	// DefaultLevel is Outbox if Options.Queue can take part in transactions, as an sqloutbox.Outbox
	// can, and Inline otherwise.
	DefaultLevel Level = iota

	// Async writes an outbox row in the transaction and does nothing after the commit. A Relay
	// invalidates the key Options.AsyncDelay later, or reloads it (Options.Reload), and adds it
	// to filters. Until then the old value is served. Async needs an outbox. The Relay must run
	// in a process that has the loaders of the keys, unless these loaders have no filter, or the
	// rows existed before (Key.Existing).
	Async

	// Inline invalidates after the commit. Failed invalidations go to the queue, see
	// Options.Queue. If the process is killed in between, the old values stay cached until their
	// TTL.
	Inline

	// Outbox writes an outbox row in the transaction, and invalidates after the commit. If the
	// writer does not get to invalidate the keys, a Relay does.
	Outbox

	// Strict is Outbox (Inline without an outbox), and holds the keys from before the transaction
	// until after the invalidation (see cacheaside.Hold). During that time no process caches
	// them, and reads that bypass the memory tier of other processes return what is committed. If
	// Redis cannot hold the keys, the write fails before the transaction or is rolled back. A
	// group (Loader.GroupKey) cannot be held: it is invalidated after the commit, as by Outbox. All
	// keys of a loader are an error. Strict needs Options.StrictWrites of the Cache in all
	// processes.
	Strict
)

// String returns the name of the level.
func (l Level) String() string {
	if l > Strict {
		return fmt.Sprintf("Level(%d)", uint8(l))
	}
	return [...]string{"DefaultLevel", "Async", "Inline", "Outbox", "Strict"}[l]
}

// Options are the settings of a Writer. The zero value, and nil, are good defaults, but set Queue
// to an outbox if the writes must survive a kill.
type Options struct {
	// Level is the level of Update. Writer.At selects another one for single writes. Default:
	// DefaultLevel.
	Level Level

	// Queue stores pending invalidations. An sqloutbox.Outbox, or another TxQueue, permits the
	// levels Async and Outbox, and lets Strict survive a kill. With a queue in memory, a failed
	// invalidation is returned as ErrQueued, and is lost with the process; any other Queue is
	// assumed to survive the process. The caller closes the Queue, if it has to be closed, after
	// the Writer. Default: NewMemoryQueue(0).
	Queue Queue

	// DoubleDelete invalidates each key a second time after this delay. The second invalidation
	// removes outdated values that were stored after the first one, because they were read from a
	// replica that lags, or because another program fills the caches. It is as durable as the
	// Queue. A queue in memory holds each key until then, and replaces keys by their whole loader
	// when it is full. Default: no second invalidation. At most 1 hour.
	//
	// If load functions read from replicas and cacheaside's Options.ReplicaLag is not set, set it
	// to more than the lag of the replicas. Also set it if other programs fill the caches.
	DoubleDelete time.Duration

	// AsyncDelay is the time between the write of the outbox row, which is the last statement of
	// the transaction, and the invalidation at the level Async. Default: 1 s. From 1 ms to 1
	// hour.
	AsyncDelay time.Duration

	// Reload makes Async reload keys (Cache.RefreshKeys) instead of invalidating them.
	Reload bool

	// Tx are the options of the transactions. Default: those of the database.
	Tx *sql.TxOptions

	// Relay are the settings of the Relay that the Writer runs.
	Relay *RelayOptions

	// NoRelay disables the Relay of the Writer, until StartRelay. Default: it runs one. Set it if a
	// Relay runs elsewhere, in this process or in another, or is to start later.
	NoRelay bool

	// OnQueued is called when the invalidation of keys has failed and they were queued: after a
	// commit, after a rollback, or in InvalidateMany. It receives these keys and the cause. The
	// write waits for OnQueued. Default: none.
	OnQueued func(ctx context.Context, keys []cacheaside.Key, err error)
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.Queue == nil {
		d.Queue = NewMemoryQueue(0)
	}
	d.AsyncDelay = cmp.Or(d.AsyncDelay, time.Second)
	return d
}

func (o Options) check() error {
	if o.DoubleDelete < 0 || o.DoubleDelete > time.Hour {
		return fmt.Errorf("Options.DoubleDelete %v: from 0 to 1h", o.DoubleDelete)
	}
	if o.AsyncDelay < time.Millisecond || o.AsyncDelay > time.Hour {
		return fmt.Errorf("Options.AsyncDelay %v: from 1ms to 1h", o.AsyncDelay)
	}
	if err := o.checkLevel(o.Level); err != nil {
		return fmt.Errorf("Options.Level: %w", err)
	}
	return nil
}

var errNoOutbox = errors.New("needs an outbox: Options.Queue cannot take part in transactions")

// immediate is a Queue that cannot delay items, such as a pglogical.Outbox. If the outcome of a
// write is unknown, Inline queues a delayed invalidation. The other levels need none: their items
// are in the transaction.
type immediate interface {
	Queue
	Immediate()
}

var errImmediate = errors.New("Options.Queue cannot delay items: it permits Async, Outbox and Strict")

// checkLevel reports why the Writer cannot write at level l, or nil.
func (o Options) checkLevel(l Level) error {
	switch {
	case l > Strict:
		return fmt.Errorf("%v: from DefaultLevel to Strict", l)
	case (l == Async || l == Outbox) && o.outbox() == nil:
		return fmt.Errorf("%v: %w", l, errNoOutbox)
	}
	if _, is := o.Queue.(immediate); is && l == Inline {
		return fmt.Errorf("%v: %w", l, errImmediate)
	}
	return nil
}

// outbox returns the queue if it can take part in transactions, and nil otherwise.
func (o Options) outbox() TxQueue {
	t, _ := o.Queue.(TxQueue)
	return t
}

// RelayOptions are the settings of a Relay. nil and the zero value are good defaults.
type RelayOptions struct {
	// Poll is the interval between two claims while the queue has fewer due items than a batch
	// (500). If more than five relays share the queue, one that has just found nothing waits
	// longer, so that all of them together poll about as often as five, but at most 30 s, unless
	// Poll is longer than 20 s. A QueueWaiter, such as MemoryQueue, is not polled. With
	// QueueHooks.Listen, Poll is the minimum time between two claims. Default: 200 ms. At least 1
	// ms. Lower it if Async writes must become visible sooner.
	Poll time.Duration

	// ClaimFor is the duration of a claim. The items that a killed process had claimed are
	// handled after that time. A filter or a load function has a third of it for each batch;
	// after that the items are retried. Default: 30 s. At least 1 s. Lower it to handle the items
	// of killed processes sooner; raise it for slow filters or reloads.
	ClaimFor time.Duration

	// AlertAt is the number of consecutive failures that raises an alert. The failures of an
	// item, of all invalidations while Redis is down, of a loader's code that hangs or panics, of
	// calls of the queue, and of Queue.Depth are counted separately. Because the delays double, 10
	// failures take about a minute for an item, and 10 s for Redis or the queue. Those of
	// Queue.Depth take 10 s, and up to some minutes if many relays share the queue. Default: 10.
	// Lower it to be alerted sooner, raise it to ignore short outages.
	AlertAt int

	// OnAlert is called for each alert, on its own goroutine. Run waits for the call before it
	// returns. Every alert is also logged and counted (RelayStats.Alerts). Default: none. Set it
	// if the logs are not monitored.
	OnAlert func(Alert)

	// Logger receives warnings about alerts, the first failure of the queue, and code of a loader
	// that hangs or panics. When an alert or the failure of the queue ends, it receives a message
	// at level Info. Keys are logged as hashes. Default: slog.Default(), as set when the Relay is
	// made.
	Logger *slog.Logger
}

// An Alert reports that a Relay cannot do its work. There are five kinds: failing items, or a
// failing loader; Redis or the queue down; items that can never be handled; items whose loader no
// relay here has (Item.Inserting); and the end of Run because the cache was closed. An alert of a
// kind is raised once for everything that fails at the same time. The next one is raised when all
// of that has succeeded and something fails again.
type Alert struct {
	// Depth describes the queue, normally at most a second ago. It is older if the queue has
	// failed since then.
	Depth Depth

	// Attempts is the number of consecutive failures.
	Attempts int

	// Err is the cause of the last failure. errors.Is(Err, cacheaside.ErrRedis) is true if Redis
	// was unreachable. For an item with an invalid Key, Err is the error of Key.Check.
	Err error
}

func (r *RelayOptions) withDefaults() RelayOptions {
	var d RelayOptions
	if r != nil {
		d = *r
	}
	d.Poll = cmp.Or(d.Poll, 200*time.Millisecond)
	d.ClaimFor = cmp.Or(d.ClaimFor, 30*time.Second)
	d.AlertAt = cmp.Or(d.AlertAt, 10)
	d.Logger = cmp.Or(d.Logger, slog.Default())
	return d
}

func (r RelayOptions) check() error {
	switch {
	case r.Poll < time.Millisecond:
		return fmt.Errorf("RelayOptions.Poll %v: at least 1ms", r.Poll)
	case r.ClaimFor < time.Second:
		return fmt.Errorf("RelayOptions.ClaimFor %v: at least 1s", r.ClaimFor)
	case r.AlertAt < 0:
		return fmt.Errorf("RelayOptions.AlertAt %d: at least 1", r.AlertAt)
	}
	return nil
}
