package consistency

import (
	"sync"
	"sync/atomic"
	"time"
)

// Stats are the counters of a Writer since it was made. They cover all its levels.
type Stats struct {
	Updates      int64 // committed writes
	RolledBack   int64 // writes that were rolled back, for any reason
	Unknown      int64 // writes that returned ErrUnknown
	HoldsRefused int64 // writes that were not executed because their keys could not be put on hold
	HoldsLost    int64 // writes that were rolled back because a hold was lost, or Redis could not confirm it
	NotStored    int64 // calls of WriteThrough that invalidated the key instead of storing the value

	// Queued is the number of keys that were queued because their invalidation failed after a
	// commit or a rollback. Keys that Async and Enqueue write to the outbox are not counted.
	Queued    int64
	Skipped   int64 // keys of Queued that were queued without an attempt, because Redis had just been unreachable
	NotQueued int64 // keys that the queue did not accept: ErrNotQueued, ErrNotInvalidated

	// Removed is the number of outbox rows that the Writer removed after it had invalidated their
	// keys, or scheduled for their second invalidation (Options.DoubleDelete).
	Removed    int64
	NotRemoved int64 // rows that the Writer could not remove: a Relay invalidates their keys once more

	Relay RelayStats // of the Relay that the Writer runs
}

// counters are the atomic counters behind Stats.
type counters struct {
	updates, rolledBack, unknowns      atomic.Int64
	holdsRefused, holdsLost, notStored atomic.Int64
	queued, skipped, notQueued         atomic.Int64
}

// RelayStats are the counters and the state of a Relay since it was made.
type RelayStats struct {
	Done        int64 // items that were handled and removed from the queue
	Again       int64 // first invalidations of items that are invalidated twice (Item.Again)
	Failed      int64 // failed attempts at an item
	Retried     int64 // attempts at items that had failed before
	NotReloaded int64 // keys that were invalidated because they could not be reloaded
	Bad         int64 // attempts in Failed at items with an invalid Key: an operator has to repair or remove them
	Unknown     int64 // attempts at items that only a process with their loader can handle (Item.Inserting)
	QueueErrors int64 // failed calls of the queue
	Alerts      int64 // alerts, passed to OnAlert if it is set
	Panics      int64 // panics of OnAlert, the Logger and the queue

	// Ended reports that Run has returned before its ctx ended, because the cache was closed.
	Ended bool

	// Out reports that the relay's last invalidation failed for all keys because Redis was down. If
	// other relays handle the remaining items, Out stays true until nothing has been due for
	// RelayOptions.ClaimFor.
	Out bool

	// Lag is the mean time between Put and the completion of an item, including its intended delay.
	// MaxLag is the maximum.
	Lag, MaxLag time.Duration

	// Relays is the number of relays that share the queue, as this one has last counted them. They
	// include those that were killed within the last 30 s. It is 0 if it is unknown: the queue has
	// no QueueIdentity, or Redis was not reachable since Run began.
	Relays int

	// Depth describes the queue, as shared by all relays, DepthAge ago. A running Relay reads it
	// about once a second. Each of more than five Relays reads it less often, at least every 30 s.
	// One whose queue listens reads it when it claims.
	Depth    Depth
	DepthAge time.Duration
}

// Stats returns the counters. It does no I/O.
func (r *Relay) Stats() RelayStats {
	r.counted.Lock()
	defer r.counted.Unlock()
	s := r.counted.RelayStats
	if s.Done > 0 {
		s.Lag = r.counted.lags / time.Duration(s.Done)
	}
	if !r.counted.depthAt.IsZero() {
		s.DepthAge = time.Since(r.counted.depthAt)
	}
	return s
}

// counted holds the counters of a Relay and their lock.
type counted struct {
	sync.Mutex
	RelayStats
	lags    time.Duration // sum over all completed items
	depthAt time.Time     // when Depth was read
}

// count calls change with the lock held.
func (r *Relay) count(change func(*counted)) {
	r.counted.Lock()
	defer r.counted.Unlock()
	change(&r.counted)
}
