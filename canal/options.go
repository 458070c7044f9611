package canal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/lock"
)

// Options are the settings of a Consumer. nil, and the zero value, are good defaults.
type Options struct {
	// Locker makes one Consumer of many active: the one that holds the lock of Name. When that one
	// has gone, another takes over from the checkpoint. Default: none, every Consumer consumes;
	// more than one does the same work more than once, and is no harm. Set it if the program runs
	// more than once.
	Locker *lock.Locker

	// Name is the name of the lock. Default: "canal". Give Consumers with other Bindings another
	// name, and another checkpoint.
	Name string

	// StopWhenLost makes Run return an error that Is ErrPositionLost when the Source cannot go on
	// from where the checkpoint is. Default: false: the loss is alerted, all keys of all bound
	// loaders are invalidated, which repairs the caches completely, OnGap is called, and Run goes
	// on from now. Set it if handlers must not miss a change; to begin anew nevertheless, remove
	// the checkpoint.
	StopWhenLost bool

	// OnGap is called when filters, which an invalidation does not repair, may have missed changes:
	// at the first start of all, when the position was lost, and when a table that is bound may
	// have other rows than before (Replace). The Source listens already then. In OnGap, rebuild the
	// filters from the database, and return when they are rebuilt; rows inserted from then on are
	// told, so bloom.RebuildOptions.Settle can be negative. If OnGap returns an error it is called
	// again, and everything waits: a table that has been replaced may have fewer rows than before,
	// which takes bloom.RebuildOptions.AllowFewer. bloom.ErrRebuilding is no failure: another call,
	// such as one of Maintain, rebuilds the filter, and OnGap is called again until that has ended.
	// Bindings of filters need OnGap; so do loaders with a filter that hides keys. Default:
	// nothing.
	OnGap func(ctx context.Context) error

	// Parking keeps changes that could not be done, for somebody to look at: parking.NewFile,
	// parking.NewTable, or your own. Handlers, filters and Sources that decode messages need it.
	Parking Parking

	// Attempts is how often a handler is given a change for which it returns errors, until the
	// change is parked. Default: 5, within some two seconds. If a service that the handler calls
	// may be out for longer, and handlers are to wait for it rather than have all changes parked,
	// set some hundreds, at some five seconds each; Handle says what else waits then.
	Attempts int

	// SaveEvery is how often the position is saved while rows change, and so how much is done again
	// after a kill. While no rows change it is saved ten times as seldom. Default: 1 s.
	SaveEvery time.Duration

	// AlertAfter is for how long Redis, the Source, the checkpoint or a filter must have failed to
	// be alerted; or a handler, a filter, an invalidation or Parking must have been running.
	// Default: 10 s.
	AlertAfter time.Duration

	// OnAlert is told of each alert, on a goroutine of its own: one for a failure, however often it
	// repeats itself, one for a lost position, one for a row that was not understood or was parked,
	// at most one a second of a kind. Run waits for it in the end. Default: the alert is logged, as
	// in any case.
	OnAlert func(Alert)

	// Logger is told, as a warning, of alerts. A panic of its handler loses the record. Default:
	// slog.Default().
	Logger *slog.Logger
}

// Alert says that something has failed: it goes on being tried, or was repaired at a price, or was
// parked.
type Alert struct {
	// What names the kind of trouble: "redis", "source", "checkpoint", "lock", "gap", "parking",
	// "hangs", "position lost", "not understood", "missing table" or "parked".
	What string
	// Binding is whose it is, if it is one's.
	Binding string
	Err     error
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Name = cmp.Or(d.Name, "canal")
	d.Attempts = cmp.Or(d.Attempts, 5)
	d.SaveEvery = cmp.Or(d.SaveEvery, time.Second)
	d.AlertAfter = cmp.Or(d.AlertAfter, 10*time.Second)
	d.Logger = limitedlog.Guarded(cmp.Or(d.Logger, slog.Default()))
	return d
}

func (o Options) check() error {
	switch {
	case o.Attempts < 1:
		return fmt.Errorf("Options.Attempts %d: at least 1", o.Attempts)
	case o.SaveEvery < 0:
		return fmt.Errorf("Options.SaveEvery %v: cannot be negative", o.SaveEvery)
	case o.AlertAfter < 0:
		return fmt.Errorf("Options.AlertAfter %v: cannot be negative", o.AlertAfter)
	}
	return nil
}
