package groups

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A Loader holds the logs of one loader, one for each range of slots. New returns one.
type Loader struct {
	logs  [conn.Ranges]Log
	all   uint64
	inUse atomic.Bool
	o     Options

	discovery sync.Mutex // held while Discover outdates memory
}

// Options are the callbacks of a Loader. They are called concurrently, and must be quick.
type Options struct {
	All    uint64              // the hash that stands for all groups of the loader
	InUse  bool                // the loader's values have groups
	Local  bool                // there is no Redis: this process numbers the invalidations
	Forget func(stable uint64) // outdates the items in memory that have this group; may be nil
	Void   func()              // outdates all items of the loader in memory; may be nil
	Lag    time.Duration       // for which the database's replicas may lag
	// called when an invalidation within Lag becomes known, before the log contains it; nil if Lag
	// is 0
	Hold       func(stable uint64)
	Discovered func() // called when another process turns out to use groups, after Void; not called if InUse
}

// New returns a Loader.
func New(o Options) *Loader {
	l := &Loader{all: o.All, o: o}
	l.inUse.Store(o.InUse)
	for r := range l.logs {
		l.logs[r].all, l.logs[r].forget, l.logs[r].void = o.All, o.Forget, o.Void
		if o.Local {
			l.logs[r].last = 1
		}
	}
	return l
}

// All returns the set of the group that stands for all groups of the loader. Each invalidation of
// a group outdates its entries.
func (l *Loader) All() Set { return SetOf(l.all) }

// AllHash returns the hash of that group.
func (l *Loader) AllHash() uint64 { return l.all }

// InUse reports whether values of the loader have groups, in this process or in another one.
func (l *Loader) InUse() bool { return l.inUse.Load() }

// Discover records that another process uses groups of the loader. From now on, values of this
// process belong to all groups, and entries without groups are outdated. When Discover returns,
// memory has no values from before, also if another goroutine has made the discovery.
func (l *Loader) Discover() {
	if l.o.InUse {
		return
	}
	l.discovery.Lock()
	first := !l.inUse.Swap(true)
	if first && l.o.Void != nil {
		l.o.Void()
	}
	l.discovery.Unlock()
	if first {
		l.o.Discovered()
	}
}

// Last returns Log.Last of a range.
func (l *Loader) Last(rng uint8) uint64 { return l.logs[rng].Last() }

// Current returns Log.Current of a range.
func (l *Loader) Current(rng uint8, known uint64, set Set) bool {
	return l.logs[rng].Current(known, set)
}

// Fresh returns Log.Fresh of a range.
func (l *Loader) Fresh(rng uint8, known uint64, set Set) bool { return l.logs[rng].Fresh(known, set) }

// Read adds records that were read from Redis to the log of a range: see Log.read. It reports
// false if Redis has lost them. now is a recent time of Redis' clock in microseconds, or 0 if it is
// not known.
func (l *Loader) Read(rng int, now uint64, records []Record) (ok bool) {
	last := l.logs[rng].Last()
	for _, r := range records {
		recent := max(now, records[len(records)-1].Number) - uint64(l.o.Lag.Microseconds())
		if r.Number > last && r.Number >= recent {
			l.hold(r)
		}
	}
	return l.logs[rng].read(records)
}

// Announced adds an invalidation that this process has sent, or that was announced by another one.
func (l *Loader) Announced(rng int, set Set, number uint64) {
	l.Discover()
	for i := range set.Len() {
		l.hold(Record{Group: set.Hash(i)})
		l.logs[rng].announced(set.Hash(i), number)
	}
}

// Invalidate adds invalidations in a process without Redis.
func (l *Loader) Invalidate(set Set) {
	for i := range set.Len() {
		l.hold(Record{Group: set.Hash(i)})
		l.logs[0].next(set.Hash(i))
	}
}

// Forget outdates the items in memory that have one of these groups. It is called when an
// invalidation did not reach Redis.
func (l *Loader) Forget(set Set) {
	for i := range set.Len() {
		l.logs[0].outdate(set.Hash(i))
	}
}

// hold puts the group of a record on hold, before the log contains it. A floor replaces the numbers
// of groups that are not known, so it holds all.
func (l *Loader) hold(r Record) {
	if l.o.Hold == nil {
		return
	}
	if r.Floor {
		l.o.Hold(l.FloorHash())
	} else {
		l.o.Hold(r.Group)
	}
	l.o.Hold(l.all)
}

// FloorHash returns the hash under which Hold is called for a floor.
func (l *Loader) FloorHash() uint64 { return ^l.all }
