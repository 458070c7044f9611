package canal

import (
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// counters are what Stats shows.
type counters struct {
	running, active                         atomic.Bool
	batches, changes, handledChanges        atomic.Int64
	handlerErrors, misunderstood, malformed atomic.Int64
	parked, lost, failures, alerts          atomic.Int64
	upTo                                    atomic.Int64 // Unix nanoseconds
	position, savedPosition                 atomic.Pointer[event.Position]
	lastError                               atomic.Pointer[error]
	doing                                   atomic.Pointer[doing]
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

// doing is what a Consumer waits for.
type doing struct {
	what  string // as people read it
	since time.Time
}
