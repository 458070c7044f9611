package consistency

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
)

// Level is how far a write goes for its caches. From Inline on, each level does what the one before
// does, and more. docs/guides/writing.md says which level wins which race, and what it costs.
type Level uint8

const (
	// ByDefault is Outbox if Options.Queue takes part in transactions, as a SQLOutbox does, else
	// Inline.
	ByDefault Level = iota

	// Async only writes the intent, in the transaction; a Relay invalidates Options.AsyncDelay
	// later, or reloads (Options.Reload), and tells filters. Until then the old value is served.
	// Async needs an outbox. It needs a Relay in a process that has the keys' loaders, unless these
	// loaders have no filter, or the keys are of rows that were there before (Key.Existing).
	Async

	// Inline invalidates after the commit. Invalidations that fail go to the queue, see
	// Options.Queue. A process that is killed in between leaves the keys cached as they were.
	Inline

	// Outbox writes the intent in the same transaction, and invalidates after the commit. So the
	// keys are invalidated whatever happens, by a Relay if not by the writer.
	Outbox

	// Strict is Outbox (Inline without one), and holds the keys from before the commit until after
	// the invalidation (see cacheaside.Hold). Nobody caches anything of them meanwhile, and reads
	// that bypass the memory of other processes see what is committed. A Strict write fails, before
	// the transaction or instead of its commit, if Redis cannot hold the keys. Strict needs
	// Options.StrictWrites of the Cache, in all processes.
	Strict
)

// String is the level's name.
func (l Level) String() string {
	if l > Strict {
		return fmt.Sprintf("Level(%d)", uint8(l))
	}
	return [...]string{"ByDefault", "Async", "Inline", "Outbox", "Strict"}[l]
}

// Options are the settings of a Writer. The zero value, and nil, are good defaults, but an outbox
// as the Queue is better.
type Options struct {
	// Level is that of Update; Writer.At has another one for single writes. Default: ByDefault.
	Level Level

	// Queue keeps the invalidations that are still to be done. With a SQLOutbox, or another queue
	// with such a method PutIn, the levels Async, Outbox and a crash-safe Strict are possible. If
	// the Queue is in memory, an invalidation that has failed is returned as ErrQueued, and lost
	// with the process; any other Queue is taken to survive the process. The caller closes the
	// Queue, if it is to be closed, after the Writer. Default: NewMemoryQueue(0).
	Queue Queue

	// DoubleDelete invalidates each key once more, so much later, for values that the first
	// invalidation cannot void: those that were read from a replica of the database that lags, or
	// by other programs, and stored after it. It is as durable as the Queue. With a queue in memory
	// each key waits there meanwhile, and keys of a full one become whole loaders. Default: none.
	// At most 1 hour. Set it for replicas that lag less than that, unless cacheaside's
	// Options.ReplicaLag is set; or if other programs fill the caches, too.
	DoubleDelete time.Duration

	// AsyncDelay is how long after the transaction's last statement an invalidation by Async is
	// due. Default: 1 s. From 1 ms to 1 hour.
	AsyncDelay time.Duration

	// Reload has Async reload keys (Cache.RefreshKeys) instead of deleting them.
	Reload bool

	// Tx are the options of the transactions. Default: those of the database.
	Tx *sql.TxOptions

	// Relay are the settings of the Relay that the Writer runs.
	Relay *RelayOptions

	// NoRelay makes the Writer run no Relay. Default: it runs one. Set it if a Relay runs
	// elsewhere, in this process or in another.
	NoRelay bool

	// OnQueued is called when the caches could not be told of a write that was committed, or rolled
	// back, or of keys of InvalidateMany, and the keys are in the queue now. It gets these keys,
	// and why. The write waits for OnQueued. Default: none.
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
	if err := o.level(o.Level); err != nil {
		return fmt.Errorf("Options.Level: %w", err)
	}
	return nil
}

var errNoOutbox = errors.New("needs an outbox: Options.Queue cannot take part in transactions")

// level tells whether writes can have it.
func (o Options) level(l Level) error {
	switch {
	case l > Strict:
		return fmt.Errorf("%v: from ByDefault to Strict", l)
	case (l == Async || l == Outbox) && o.outbox() == nil:
		return fmt.Errorf("%v: %w", l, errNoOutbox)
	}
	return nil
}

// transactional is a Queue that can take part in a transaction of the database that is written to.
type transactional interface {
	Queue
	PutIn(ctx context.Context, tx sqlx.ExecerContext, items ...Item) error
}

// outbox is the queue, if it can take part in transactions.
func (o Options) outbox() transactional {
	t, _ := o.Queue.(transactional)
	return t
}

// RelayOptions are the settings of a Relay. nil, and the zero value, are good defaults.
type RelayOptions struct {
	// Poll is how often a queue in which less was due than a relay does at once (500 items) is
	// asked again. A queue that tells when there is something to do, as a MemoryQueue does, is not
	// polled. Default: 200 ms. At least 1 ms. Lower it if Async writes must show sooner.
	Poll time.Duration

	// ClaimFor is how long items are claimed: the items of a process that is killed are done so
	// much later. A filter or a load function has a third of it for the items that a Relay gives it
	// together; what takes longer is tried again. Default: 30 s. At least 1 s. Lower it to have the
	// items of killed processes done sooner; raise it for filters or reloads that take longer.
	ClaimFor time.Duration

	// AlertAt is how often something must have failed in a row until it is alerted: an item, all
	// that is tried while Redis is out, code of a loader that hangs or panics, or a call of the
	// queue. As delays double, 10 times take about a minute for an item, and 10 s for Redis or the
	// queue. Default: 10. Lower it to know sooner, raise it to know only of troubles that last.
	AlertAt int

	// OnAlert is told of each alert, from a goroutine of its own, for which Run waits in the end.
	// Default: the alert is logged, as it is in any case, and counted (RelayStats.Alerts). Set it
	// if the logs wake nobody.
	OnAlert func(Alert)

	// Logger receives warnings: of alerts, when the queue begins to fail, and when code of a loader
	// hangs or panics; and at level Info, that an alert or the queue's trouble is over. It is shown
	// hashes of keys. Default: slog.Default(), as it is when the Relay is made.
	Logger *slog.Logger
}

// Alert says that a Relay cannot do its work. There is one for all items that fail together, one
// for Redis or the queue when nothing works for want of them, one for items that can never be done,
// one for items whose loader no Relay here has (Item.Admit), and one when Run has ended because the
// cache was closed. The next of a kind comes when everything that the last one was about has
// worked, and something fails again.
type Alert struct {
	// Depth is what was in the queue, a second ago or less; much longer ago if the queue has failed
	// since.
	Depth Depth

	// Attempts is how often it has failed.
	Attempts int

	// Err is the cause of the last failure. It Is cacheaside.ErrRedis if Redis was out of reach. If
	// an item can never be done, since its Key is none, Err is what Key.Check says.
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
