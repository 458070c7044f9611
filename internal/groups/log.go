// Package groups holds what a process knows of the invalidated groups of its loaders. A group is a
// set of entries that are invalidated together: cacheaside.LoaderOptions.Groups.
//
// Redis numbers the invalidations of groups, for each loader and range of slots, and stores the
// number of the last invalidation of each group. A process reads these numbers into a log. An entry
// carries the hashes of its groups and the last number that the log contained before the entry's
// load began. So the entry is current if none of its groups has a greater number. The load itself
// need not know the groups before it ends.
package groups

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
)

// Max is the maximum number of invalidated groups of a loader that are recorded in a range. If
// there are more, the oldest are removed, and the floor rises.
const Max = 1 << 16

// mostKnown is how many numbers a Log holds before it forgets all but Max of them. They take 2.2
// MiB.
const mostKnown = Max + Max/4

// A Set is the stable hashes of the groups of an entry, 8 bytes each, big-endian.
type Set []byte

// SetOf returns the Set of these hashes.
func SetOf(hashes ...uint64) Set {
	s := make(Set, 0, 8*len(hashes))
	for _, h := range hashes {
		s = binary.BigEndian.AppendUint64(s, h)
	}
	return s
}

// Len returns the number of groups.
func (s Set) Len() int { return len(s) / 8 }

// Hash returns the hash of group i.
func (s Set) Hash(i int) uint64 { return binary.BigEndian.Uint64(s[8*i:]) }

// expiry distinguishes the expiry of a group from its invalidation. Its lowest 16 bits are 0, so
// that both outdate the same items in memory: see memory.Stripe.
const expiry = 0x9e3779b97f4a0000

// Expiry returns the hashes under which the expiry of groups is recorded, in the place of their
// own: see Log.Fresh.
func (s Set) Expiry() Set {
	expired := make(Set, 0, len(s))
	for i := range s.Len() {
		expired = binary.BigEndian.AppendUint64(expired, s.Hash(i)^expiry)
	}
	return expired
}

// A Record is the number of the last invalidation of a group. The Record without a group is the
// floor of the log.
type Record struct {
	Group  uint64
	Floor  bool
	Number uint64
}

// A Log holds the known invalidations of the groups of one loader, in one range of slots. The zero
// Log is empty. A Log is safe for concurrent use.
type Log struct {
	all    uint64             // the hash that stands for all groups
	forget func(group uint64) // outdates the items in memory that have this group; nil: there is no memory
	void   func()             // outdates all items of the loader in memory; nil: there is no memory

	mu      sync.RWMutex
	last    uint64            // the log contains all invalidations up to this number
	floor   uint64            // entries whose load began before this number are outdated
	numbers map[uint64]uint64 // by the hash of the group; all has the greatest
}

// Last returns the number up to which the log contains all invalidations; 0 if it contains none.
// The caller takes it before it reads a value from the database, and passes it to Current.
func (l *Log) Last() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last
}

// Current reports whether no known invalidation of the groups of an entry has a number greater than
// known, the result of Last before the load of the entry began. It returns false if the log was not
// read so far.
func (l *Log) Current(known uint64, set Set) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.last == 0 || known < l.floor {
		return false
	}
	for i := range set.Len() {
		if l.numbers[set.Hash(i)] > known {
			return false
		}
	}
	return true
}

// Fresh reports whether no known expiry of the groups of an entry has a number greater than known.
// An entry that is current and not fresh may be served while it is loaded again.
func (l *Log) Fresh(known uint64, set Set) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for i := range set.Len() {
		if l.numbers[set.Hash(i)^expiry] > known {
			return false
		}
	}
	return true
}

// read adds records from Redis, in ascending order of their numbers: all that have at least the
// number Last had when they were requested. It reports false if there are none: Redis has lost the
// record of the last invalidation, and perhaps others.
func (l *Log) read(records []Record) (ok bool) {
	if len(records) == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		if r.Floor {
			// A greater floor replaces numbers that this process does not know. Memory may hold
			// values from before them, which were read from Redis after the announcements.
			if missed := l.last > 0 && r.Number > l.last; missed && l.void != nil {
				l.void()
			}
			l.raiseFloor(r.Number)
		} else {
			l.raise(r.Group, r.Number)
		}
	}
	l.last = max(l.last, records[len(records)-1].Number)
	return true
}

// announced adds an invalidation that was announced. It does not change Last, because earlier ones
// may be missing.
func (l *Log) announced(group, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.raise(group, number)
}

// raise records the number of a group, and outdates the group's items in memory. Both happen under
// the lock: a poll that finds the number in the log extends the trust in memory, so the items must
// be outdated by then. If the log becomes too long, raise forgets the oldest numbers. Redis removes
// its oldest numbers, too, and raises its floor, but a process that already knows greater numbers
// does not read that floor. The caller holds l.mu.
func (l *Log) raise(group, number uint64) {
	if number <= max(l.floor, l.numbers[group]) {
		return
	}
	if l.numbers == nil {
		l.numbers = make(map[uint64]uint64)
	}
	l.numbers[group] = number
	l.numbers[l.all] = max(l.numbers[l.all], number)
	l.outdate(group)
	if len(l.numbers) > mostKnown {
		l.raiseFloor(slices.Sorted(maps.Values(l.numbers))[len(l.numbers)-Max-1])
	}
}

// outdate outdates the items in memory that have a group.
func (l *Log) outdate(group uint64) {
	if l.forget != nil {
		l.forget(l.all) // first: keepWhileDown takes the versions of the groups, and then compares this one
		l.forget(group)
	}
}

// raiseFloor outdates all entries whose loads began before this number. Then no record up to it is
// needed. The caller holds l.mu.
func (l *Log) raiseFloor(to uint64) {
	if to <= l.floor {
		return
	}
	l.floor = to
	maps.DeleteFunc(l.numbers, func(_, number uint64) bool { return number <= to })
}

// next adds an invalidation to a log without Redis, which numbers it itself.
func (l *Log) next(group uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.raise(group, l.last)
}
