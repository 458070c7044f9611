package fetch

import "time"

// prepareLookup prepares a round for a lookup in Redis: for the first one, and for each one after
// its load was refused or its generation was outdated. After that, nothing that the round has read
// or loaded before counts.
func (f *Fetcher) prepareLookup(r *Round) {
	// First ask whether the generations are confirmed, then take one. In the other order, the
	// process could take a generation, learn of a later one and confirm that, and then use the
	// earlier one as if it were confirmed.
	now, known := f.cache.Bus.ConfirmedAt(r.slotRange)
	r.takenAt = now
	f.takeSnapshot(r)
	r.step = toLookUp
	if r.generation == nil || r.outdated || !known || r.mode == Fresh && f.Groups.InUse() {
		r.step = toConfirm
	}
}

// takeSnapshot takes a round's snapshot. It is called before the first lookup in Redis, and again
// before any lookup that begins the read anew. The entry that the round stores, and the item that
// it puts in memory, are valid only under this snapshot.
func (f *Fetcher) takeSnapshot(r *Round) {
	r.generation = f.Generations.Range(r.slotRange)
	if f.Memory != nil {
		r.version = f.Memory.Version(r.slotRange, r.sharedHash)
	}
	if f.Groups.InUse() {
		r.known = f.Groups.Last(r.slotRange)
		if f.Memory != nil {
			r.allGroups = f.Memory.GroupVersion(f.Groups.AllHash())
		}
	}
}

// recentGeneration returns the generation of a round if it may have begun within ReplicaLag, and
// otherwise 0. A generation began before this process received its number. A process that has just
// started receives the numbers of old generations, so Redis checks the age again by its own clock.
// The check in this process is needed if the number of a generation is ahead of the clock of Redis:
// otherwise the hold would last too long.
func (f *Fetcher) recentGeneration(r *Round) uint64 {
	if r.generation == nil || time.Since(r.generation.Since) >= f.cache.ReplicaLag {
		return 0
	}
	return r.generation.Number
}
