package consistency

import "sync/atomic"

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

// Stats returns the counts of this Writer, and of the Writers of other levels that share everything
// with it (see At). Stats does no I/O.
func (w *Writer) Stats() Stats {
	s := Stats{
		Updates: w.updates.Load(), RolledBack: w.rolledBack.Load(), Unknown: w.unknowns.Load(),
		HoldsRefused: w.holdsRefused.Load(), HoldsLost: w.holdsLost.Load(), NotStored: w.notStored.Load(),
		Queued: w.queued.Load(), Skipped: w.skipped.Load(), NotQueued: w.notQueued.Load(),
	}
	if w.remover != nil {
		s.Removed, s.Left = w.remover.removed.Load(), w.remover.left.Load()
	}
	if w.relay != nil {
		s.Relay = w.relay.Stats()
	}
	return s
}
