package fetch

import (
	"context"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/source"
)

// A value belongs to groups, which are known when it has been loaded. Its entry carries their
// hashes, and the last number of the loader's log of groups before the load began. Every reader
// checks in its own log whether the entry is current. So nothing must be checked when the entry is
// stored, and one number invalidates a group of any size.

// isOutdated reports whether a group of an entry has been invalidated since its load began. An
// entry without groups is outdated if the loader has groups.
func (f *Fetcher) isOutdated(rng uint8, e *lease.Entry) bool {
	return f.Groups.InUse() && (!e.Grouped || !f.Groups.Current(rng, e.Known, e.Groups))
}

// isExpired reports whether a group of an entry has expired since its load began.
func (f *Fetcher) isExpired(rng uint8, e *lease.Entry) bool {
	return f.Groups.InUse() && !f.Groups.Fresh(rng, e.Known, e.Groups)
}

// setGroups sets the groups of the value that a round has loaded.
func (f *Fetcher) setGroups(r *Round, row source.Row) (err error) {
	switch {
	case !f.Groups.InUse():
		return nil
	case f.GroupsOf == nil: // only another process knows the groups
		r.groups = f.Groups.All()
	default:
		var hashes []uint64
		if err := f.cache.Guard(func() (err error) {
			hashes, err = f.GroupsOf(r.Key, row.Value, row.Null)
			return err
		}); err != nil {
			return fmt.Errorf("LoaderOptions.Groups: %w", err)
		}
		if len(hashes) > lease.MaxGroups {
			f.Counters.ManyGroups.Add(1)
			f.cache.Warn("a value belongs to all groups, because it has too many", f.Name, errManyGroups)
			hashes = []uint64{f.Groups.AllHash()}
		}
		r.groups = groups.SetOf(hashes...)
	}
	return nil
}

var errManyGroups = fmt.Errorf("LoaderOptions.Groups: more than %d groups", lease.MaxGroups)

// groupsHeldAt reports whether one of these groups was invalidated less than ReplicaLag before a
// load began. A replica may have returned a row from before.
func (f *Fetcher) groupsHeldAt(set groups.Set, began time.Time) bool {
	if f.cache.GroupHolds == nil || !f.Groups.InUse() {
		return false
	}
	for i := range set.Len() {
		if f.cache.GroupHolds.HeldAt(set.Hash(i), began) {
			return true
		}
	}
	return f.cache.GroupHolds.HeldAt(f.Groups.FloorHash(), began)
}

// preferPrimary makes a round load from the primary if any group of the loader was invalidated
// within ReplicaLag. The groups of the row are not known before it is loaded.
func (f *Fetcher) preferPrimary(r *Round) {
	if f.cache.GroupHolds != nil && f.cache.GroupHolds.Held(f.Groups.AllHash()) {
		r.needsPrimary = true
	}
}

// readGroups starts to read the invalidations of groups in the ranges of rounds that request
// leases. Concurrent batches share these reads. The caller calls wait before it loads. Then the log
// contains everything that was acknowledged before the lease was requested, so those invalidations
// do not outdate the loaded value. If Redis does not reply, the value is stored as one that is
// outdated for every reader: after a failover to a server whose clock is behind, the last number in
// the log may be one that Redis has lost and will issue again.
func (b *batch) readGroups(ctx context.Context, rounds []*Round) (wait func()) {
	f := b.fetcher
	if !f.Groups.InUse() {
		return func() {}
	}
	var reads [conn.Ranges]func() error
	for _, r := range rounds {
		if rng := r.slotRange; reads[rng] == nil {
			reads[rng] = f.cache.Bus.StartReadGroups(ctx, int(rng), f.Name)
		}
	}
	return func() {
		var errs [conn.Ranges]error
		for rng, read := range reads {
			if read != nil {
				errs[rng] = read()
			}
		}
		for _, r := range rounds {
			if r.known = f.Groups.Last(r.slotRange); errs[r.slotRange] != nil {
				f.count(errs[r.slotRange])
				r.known = 0
			}
			f.preferPrimary(r)
		}
	}
}
