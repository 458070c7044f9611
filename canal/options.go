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

// Options are the settings of a Consumer. A nil *Options and the zero value select the defaults.
type Options struct {
	// Locker ensures that one Consumer at a time is active: the one that holds the lock Name.
	// When that Consumer stops or fails, another takes over from the checkpoint. Set it if the
	// program runs in more than one process. Default: nil. Every Consumer is then active; several
	// of them repeat the same work, which does no harm.
	Locker *lock.Locker

	// Name is the name of the lock. All processes of a program use the same name, and Consumers
	// with different Bindings need different names and different checkpoints. Default: "canal:",
	// the Options.Prefix of the Cache, ":" and a hash. The hash is of the Source's database and
	// slot (package pglogical), or of its ServerID (package mysqlbinlog). With other Sources, or
	// without a ServerID, it is of the tables and loaders of the Bindings.
	// Earlier versions used "canal"; set that to wait for their Consumers.
	Name string

	// StopWhenLost makes Run return an error that Is ErrPositionLost when the Source cannot
	// continue from the checkpoint. Set it if handlers must not miss a change. To start again
	// after such an error, remove the checkpoint. Default: false. The Consumer then raises an
	// alert, invalidates all keys of all bound loaders, which repairs the caches completely,
	// calls OnGap, and continues with the changes from now on.
	StopWhenLost bool

	// RetrySetup makes Run retry while the Source is not set up correctly (ErrSetup), even if it
	// has not worked before. Set it if Run shares its process with a server that must stay up, and
	// let Health or OnAlert report the error. Default: false. An ErrSetup then ends Run, unless the
	// Checkpoint has a position, or the Source has delivered a batch before.
	RetrySetup bool

	// OnGap is called when filters may have missed changes, because an invalidation does not repair
	// a filter. It is called at the very first start and when the position was lost. It is also
	// called when a bound table may have other rows than before (event.Replace), and when no key
	// can be made of a row that may be new to the filter of a bound loader. OnGap must rebuild the
	// filters from the database, and return when they are rebuilt. The Source delivers all rows
	// inserted after the call began, so bloom.RebuildOptions.Settle can be negative. A replaced
	// table may have fewer rows than before, so set bloom.RebuildOptions.AllowFewer.
	//
	// If OnGap returns an error, it is called again, and all changes wait. bloom.ErrRebuilding
	// does not count as a failure: another call, such as one of Maintain, is rebuilding the
	// filter. The Consumer then calls OnGap again until that rebuild has ended.
	//
	// OnGap is required by Bindings of filters, and needed by loaders with a filter that refuses
	// keys. Default: nil, nothing is called.
	OnGap func(ctx context.Context) error

	// Parking stores changes that could not be processed, so that an operator can examine them.
	// Use parking.NewFile, parking.NewTable, or your own. It is needed by handlers, by filters,
	// by BindOutbox, and by Sources that decode messages. Default: nil.
	Parking Parking

	// Attempts is the maximum number of calls of a handler with one change. If the last call
	// returns an error, the change is parked. Default: 5, which takes about two seconds. If a
	// handler calls a service that may be down for longer, and changes must wait rather than be
	// parked, set a few hundred: further attempts are about five seconds apart. See Handle for
	// what else waits during that time.
	Attempts int

	// SaveEvery is the interval at which the position is saved while rows change. It bounds the
	// work that is repeated after a kill. While no rows change, the position is saved a tenth as
	// often. Default: 1 s.
	SaveEvery time.Duration

	// AlertAfter is the time after which the Consumer raises an alert: when Redis, the Source, the
	// checkpoint or a filter has been failing for so long, or when a call of a handler, a filter or
	// Parking, or an invalidation, has been running for so long. Default: 10 s.
	AlertAfter time.Duration

	// OnAlert is called with each alert, on its own goroutine. A repeated failure raises one alert.
	// A wrong setting raises one at once, whose text has the statements that correct it. A lost
	// position and a row that was not understood or was parked raise one alert each, at most one
	// per second of each kind. Run waits for these calls before it returns. Alerts are also logged.
	// Default: nil.
	OnAlert func(Alert)

	// Logger receives alerts as warnings, and reports when a failure has ended. If its handler
	// panics, the record is lost. Default: slog.Default().
	Logger *slog.Logger
}

// An Alert reports a failure. Either the Consumer is retrying, or it has invalidated more than the
// changed rows, or it has parked a change.
type Alert struct {
	Kind AlertKind

	// Binding names the Binding that is affected, such as "handler search"; "" if the alert
	// concerns no single Binding.
	Binding string
	Err     error
}

// An AlertKind is the kind of failure that an Alert reports.
type AlertKind string

// The kinds of alerts. Those up to AlertHangs last until the cause has ended.
const (
	AlertRedis           AlertKind = "redis"            // invalidations or filters fail
	AlertSource          AlertKind = "source"           // the Source fails
	AlertSetup           AlertKind = "setup"            // a wrong setting of the database (ErrSetup)
	AlertCheckpoint      AlertKind = "checkpoint"       // the position cannot be saved or read
	AlertLock            AlertKind = "lock"             // Options.Locker fails, or its lock was lost
	AlertGap             AlertKind = "gap"              // Options.OnGap fails
	AlertParking         AlertKind = "parking"          // Options.Parking fails
	AlertHangs           AlertKind = "hangs"            // a call has not returned within AlertAfter
	AlertPositionLost    AlertKind = "position lost"    // changes were lost (ErrPositionLost)
	AlertNotUnderstood   AlertKind = "not understood"   // of a row or message; all keys of its loaders were invalidated
	AlertMissingTable    AlertKind = "missing table"    // a bound table does not exist
	AlertIncompleteTable AlertKind = "incomplete table" // the Source does not get all changes of a bound table
	AlertParked          AlertKind = "parked"           // a change was parked
)

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
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
