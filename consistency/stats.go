package consistency

import (
	"sync"
	"sync/atomic"
	"time"
)

// Stats counts what a Writer has done since the start, at all levels.
type Stats struct {
	Updates      int64 // writes that were committed
	RolledBack   int64 // those that were rolled back, for whatever reason
	Unknown      int64 // those that ended with ErrUnknown
	HoldsRefused int64 // those that were not made because their keys could not be put on hold
	HoldsLost    int64 // those that were refused their COMMIT because a hold was lost, or Redis could not say that it was not
	NotStored    int64 // WriteThroughs that have invalidated instead of storing

	Queued    int64 // keys of what was committed, or rolled back, that could not be invalidated at once, and are in the queue for it; what Async and Enqueue have put there is not counted
	Skipped   int64 // of them, those for which that was not even tried, since Redis could not be reached a moment ago
	NotQueued int64 // keys that should be in the queue and could not be put there: ErrNotQueued

	Removed int64 // rows that were removed from the outbox, or left there to be done again later (Options.DoubleDelete), after the writer had invalidated their keys
	Left    int64 // those that could not be: a Relay does them once more

	Relay RelayStats // of the Writer's own Relay
}

// counters are the live form of Stats.
type counters struct {
	updates, rolledBack, unknowns      atomic.Int64
	holdsRefused, holdsLost, notStored atomic.Int64
	queued, skipped, notQueued         atomic.Int64
}

// RelayStats counts what a Relay has done since it was made.
type RelayStats struct {
	Done        int64 // items that are done, and out of the queue
	Again       int64 // times that one was done for the first of two times (Item.Again)
	Failed      int64 // attempts at an item that failed: as many as it took
	Retried     int64 // attempts at items that had failed before
	NotReloaded int64 // keys that were to be reloaded, and were invalidated since they could not be
	Bad         int64 // of Failed, attempts at items whose Key is none (Key.Check): somebody else has written them, and has to repair or remove them
	Unknown     int64 // attempts at items that are for other relays, as this one has not got their loaders (Item.Admit)
	QueueErrors int64 // calls of the queue that failed
	Alerts      int64 // alerts, told to OnAlert if there is one
	Panics      int64 // times that OnAlert or the queue panicked

	// Ended says that Run has ended though nobody has asked it to: the cache was closed.
	Ended bool

	// Out says that all that this relay has tried last has failed for want of Redis. Where other
	// relays have done the rest, Out stays true until nothing was due for RelayOptions.ClaimFor.
	Out bool

	// Lag is the mean time that items had been in the queue when they were done, including the time
	// that they were told to wait. MaxLag is the longest.
	Lag, MaxLag time.Duration

	// Depth is what is in the queue, for all relays together, as it was DepthAge ago. A Relay that
	// runs looks about once a second.
	Depth    Depth
	DepthAge time.Duration
}

// Stats returns the counts so far. It does no I/O.
func (r *Relay) Stats() RelayStats {
	r.counted.Lock()
	defer r.counted.Unlock()
	s := r.counted.RelayStats
	if s.Done > 0 {
		s.Lag = r.counted.lags / time.Duration(s.Done)
	}
	if !r.counted.seen.IsZero() {
		s.DepthAge = time.Since(r.counted.seen)
	}
	return s
}

// counted are the counts of a Relay.
type counted struct {
	sync.Mutex
	RelayStats
	lags time.Duration // of all items that are done
	seen time.Time     // when Depth was read
}

// count changes the counts.
func (r *Relay) count(change func(*counted)) {
	r.counted.Lock()
	defer r.counted.Unlock()
	change(&r.counted)
}
