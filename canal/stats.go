package canal

import (
	"errors"
	"fmt"
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

// Stats may be called at any time.
func (c *Consumer) Stats() Stats {
	s := Stats{
		Active: c.active.Load(), Batches: c.batches.Load(), Changes: c.changes.Load(), Handled: c.handledChanges.Load(), HandlerErrors: c.handlerErrors.Load(),
		Misunderstood: c.misunderstood.Load(), Malformed: c.malformed.Load(), Parked: c.parked.Load(), PositionsLost: c.lost.Load(), Failures: c.failures.Load(), Alerts: c.alerts.Load(), Lag: -1,
	}
	if p := c.position.Load(); p != nil {
		s.Position = *p
	}
	if p := c.savedPosition.Load(); p != nil {
		s.Saved = *p
	}
	s.MissingTables, s.NoChanges = c.absences()
	if d := c.doing.Load(); d != nil {
		s.Doing, s.Busy = d.what, time.Since(d.since)
	}
	if err := c.lastError.Load(); err != nil {
		s.LastError = *err
	}
	if at := c.upTo.Load(); at != 0 {
		s.Lag = max(time.Since(time.Unix(0, at)), 0)
	}
	return s
}

// idle is when a tenure has ended: what fails, and how far it has come, is for another to say.
func (c *Consumer) idle() {
	c.active.Store(false)
	c.setMissing(nil, true)
	c.upTo.Store(0)
	if c.options.Locker != nil {
		c.ills.Forget(0)
	}
}

// Health returns why caches may be behind the database for longer than within, for a probe:
// something has been running for longer, as a handler that hangs, which the error names; something
// has been failing, or the lag is greater, or Run does not run; or a bound table is missing
// (Stats.MissingTables), for no change of it can come. Health returns nil for a Consumer that waits
// for its lock, as another does the work then.
func (c *Consumer) Health(within time.Duration) error {
	s := c.Stats()
	what, failure := c.ills.Longest()
	long := c.longDoing(within)
	switch {
	case !c.running.Load():
		return errors.New("canal: it does not run")
	case long != nil:
		return long
	case what != "":
		return fmt.Errorf("canal: %s: %w", what, failure.Err)
	case !s.Active:
		return nil
	case s.Lag > within:
		return fmt.Errorf("canal: %v behind the database", s.Lag.Round(time.Millisecond))
	case len(s.MissingTables) > 0:
		return errors.New("canal: no such table: " + s.MissingTables[0])
	case s.Lag < 0:
		return errors.New("canal: the source has not begun yet")
	}
	return nil
}
