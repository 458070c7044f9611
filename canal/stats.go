package canal

import (
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// figures are what Stats and Health show.
type figures struct {
	mu      sync.Mutex
	running bool
	stats   Stats     // without what depends on the time
	since   time.Time // Stats.Doing
	upTo    time.Time // of the last commit that was done; zero: not known
}

// note changes stats.
func (f *figures) note(change func(s *Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.stats)
}

// Stats is what a Consumer has done since it was made.
type Stats struct {
	// Active tells whether it consumes now: it has the lock, if there is one.
	Active bool

	Batches, Changes int64 // read and done, with those of which nothing was to be done
	Handled          int64 // changes that a handler has taken
	HandlerErrors    int64
	Misunderstood    int64 // changes of which a Key could make nothing, or which could not be read: their loaders were invalidated as a whole
	Malformed        int64 // messages that the Source could not read: parked
	Parked           int64
	PositionsLost    int64
	Failures         int64 // of Redis, the Source, the checkpoint and the lock, each of which was tried again
	Alerts           int64

	// Lag is how far behind the database the Consumer is: the age of the last commit that was done,
	// 0 if the Source has said that there was none later. It is by the clocks of both machines. -1:
	// the Consumer has heard nothing yet, or is not active.
	Lag time.Duration

	// Position is up to where all is done, and Saved what the checkpoint knows of that.
	Position, Saved event.Position

	// Doing is what the Consumer waits for just now, and everything with it, and Busy for how long:
	// a handler ("handler search of shop.products"), a filter, the invalidation, Options.OnGap,
	// Options.Parking or the checkpoint. "": nothing.
	Doing string
	Busy  time.Duration

	// MissingTables are the Bindings whose table the database does not have, each with how that is
	// known: "loader user of shop.Users: …". Health reports the first of them. A change of the
	// table, as when it is created, removes them.
	MissingTables []string

	// NoChanges are the Bindings of whose table no change has come since the Consumer was made. One
	// that stays here although its table changes names another table.
	NoChanges []string

	// LastError is the last thing that has gone wrong, nil if nothing ever has.
	LastError error
}
