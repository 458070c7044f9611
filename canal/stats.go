package canal

import (
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// figures holds the state that Stats and Health report.
type figures struct {
	mu      sync.Mutex
	running bool
	stats   Stats     // without Busy and Lag, which are computed by Consumer.Stats
	since   time.Time // the start of Stats.WaitingFor
	upTo    time.Time // the time of the last processed commit; zero: unknown
}

// update calls change with the stats, under the mutex.
func (f *figures) update(change func(s *Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.stats)
}

// Stats are the figures of a Consumer since it was created.
type Stats struct {
	// Active reports whether the Consumer consumes now: it holds the lock, if there is a Locker.
	Active bool

	Batches, Changes int64 // processed, including changes of tables without a Binding
	Messages         int64 // of an outbox (BindOutbox), processed
	Handled          int64 // calls of handlers that succeeded
	HandlerErrors    int64
	// changes without a usable key, or that could not be read; the loader was invalidated, or the
	// change parked for a filter. Also messages of an outbox, see BindOutbox
	Misunderstood int64
	Malformed     int64 // messages that the Source could not read, and that were parked
	Parked        int64
	PositionsLost int64
	Failures      int64 // of Redis, the Source, the checkpoint, the lock, OnGap and Parking; each was retried
	Alerts        int64

	// Lag is how far the Consumer is behind the database: the age of the last processed commit. The
	// Source also reports when there is no later commit, so Lag stays small while nothing changes.
	// Lag compares the clocks of two machines. It is -1 until the first batch with a time, and
	// while the Consumer is not active.
	Lag time.Duration

	// Position is the position up to which all changes are processed. Saved is the position that
	// was last saved in the checkpoint.
	Position, Saved event.Position

	// Retained is the number of bytes of log that the server keeps for this Consumer, if the Source
	// is a Retainer. It grows while the position is not saved, and can fill the server's disk. It
	// is -1 if it is unknown, and for other Sources.
	Retained int64

	// WaitingFor names the call that the Consumer is waiting for: a handler ("handler search of
	// shop.products"), a filter, the invalidation, Options.OnGap, Options.Parking or the
	// checkpoint. It is "" if there is none. All changes wait for this call. Busy is how long it
	// has been running.
	WaitingFor string
	Busy       time.Duration

	// MissingTables lists the Bindings whose table does not exist in the database, each with the
	// reason: "loader user of shop.Users: …". Health reports the first of them. A Binding is
	// removed when a change of its table arrives, for example after the table was created. It also
	// lists those whose table is followed only in part (event.Batch.Incomplete), until that is
	// repaired.
	MissingTables []string

	// NoChanges lists the Bindings for whose table no change has arrived since the Consumer was
	// created. If a table changes and its Binding stays in this list, the Binding names another
	// table.
	NoChanges []string

	// LastError is the last error, or nil if there was none.
	LastError error
}
