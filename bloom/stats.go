package bloom

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Stats holds counts of the lookups and additions of this process since it started.
type Stats struct {
	Absent  int64 // lookups of keys that were certainly not added
	Present int64 // lookups of keys that may have been added: all their bits are set
	Unknown int64 // lookups that the filter could not decide, and that returned "maybe": Lost + Failed
	Lost    int64 // of Unknown: the filter was not built, or the segment of the key was lost
	Failed  int64 // of Unknown: Redis could not be queried

	// FalsePositives is the number of keys that were reported to NotFound. In front of a loader,
	// or in a DenyList, it includes keys of Unknown whose rows do not exist.
	FalsePositives int64

	Added     int64 // keys added
	AddErrors int64 // failed calls of Add, AddMany, Inserting, and of the function that Inserting returns
	LostAdds  int64 // lost segments that an Add has found; their keys are "maybe" until a Rebuild
	Malformed int64 // reads of the descriptor that found a value that could not be decoded

	// Hidden is the number of reported false negatives: keys that the filter refused although
	// their rows exist. Each report makes the filter return "maybe" until it is rebuilt.
	Hidden int64

	// RolledBack is the number of times that this process found Redis restored to a state from
	// before writes that it had acknowledged. The filter returns "maybe" until it is rebuilt.
	RolledBack int64

	Rejected int64 // rebuilt filters that did not replace the present one: ErrFewer
	Failures int64 // failed checks and rebuilds of Maintain, including Rejected

	// The following fields are zero without a Replica.
	Copied     bool  // the Replica currently refuses keys without a round trip
	CopyBytes  int64 // size of the copy, including the next one while it is being fetched
	LostCopied int64 // segments of the copy that Redis has lost; their keys are "maybe" until a Rebuild
	TooLarge   bool  // the filter is larger than Options.MaxReplicaBytes, so it is not copied
	Copies     int64 // copies that were completed

	// Gaps is the number of times that an announcement may have been missed, including the start
	// and each lost connection. The copy is fetched again after each of them.
	Gaps     int64
	Received int64 // announcements received from other processes
}

// FalsePositiveRate returns the measured share of false positives among the keys that do not
// exist, or 0 if there were none. It counts the keys that were reported to NotFound.
func (s Stats) FalsePositiveRate() float64 {
	if s.FalsePositives == 0 {
		return 0
	}
	return float64(s.FalsePositives) / float64(s.FalsePositives+s.Absent)
}

// State describes the present state of a filter.
type State struct {
	Built    bool    // the filter is complete and can refuse keys
	Building bool    // a Rebuild is in progress, or was interrupted
	Capacity uint64  // number of keys that the filter was built for
	Rate     float64 // rate of false positives at Capacity
	Bits     uint64  // number of bits of all segments
	SetBits  uint64  // bits that are set, without those of lost segments
	Keys     uint64  // estimated number of keys, from SetBits: without those of lost segments
	Deleted  uint64  // rows reported to Deleted since the rebuild of the filter began

	// The following fields are zero for a Local.
	Generation string // ID of the present generation; each rebuild creates a new one
	Owner      string // Options.Prefix of the Cache whose loaders use the filter; "" if not recorded
	Table      string // what a Table has read into it, as database.table.column; "" if not recorded
	Hashes     uint64 // number of bits per key
	Segments   uint64 // number of strings that hold the bits

	// LostSegments is the number of segments that were evicted, deleted, overwritten or
	// truncated. Their keys are "maybe" until a Rebuild.
	LostSegments uint64
	Begun        time.Time // start of the rebuild, by the clock of the process that ran it
	Next         string    // ID of the generation that is being built
	NextBegun    time.Time // start of its rebuild
	Old          int       // number of old generations that are not yet removed
}

// Fill returns the share of bits that are set. It is about one half at capacity.
func (s State) Fill() float64 {
	if s.Bits == 0 {
		return 0
	}
	return float64(s.SetBits) / float64(s.Bits)
}

// counts holds the counters of Stats.
type counts struct {
	absent, present, lost, failed, falsePositives atomic.Int64
	added, addErrors, lostAdds, malformed         atomic.Int64
	rejected, failures                            atomic.Int64
	hidden, wentBack                              atomic.Int64
}

// countLookups counts the results of a lookup. unknown is the number of results that are true
// because the filter could not decide. These results count as failed if err is not nil, and as lost
// otherwise.
func (c *counts) countLookups(maybe []bool, unknown int, err error) {
	absent := 0
	for _, m := range maybe {
		if !m {
			absent++
		}
	}
	c.absent.Add(int64(absent))
	c.present.Add(int64(len(maybe) - absent - unknown))
	if err != nil {
		c.failed.Add(int64(unknown))
	} else {
		c.lost.Add(int64(unknown))
	}
}

func (c *counts) stats() Stats {
	s := Stats{
		Absent: c.absent.Load(), Present: c.present.Load(), Lost: c.lost.Load(), Failed: c.failed.Load(),
		FalsePositives: c.falsePositives.Load(),
		Added:          c.added.Load(), AddErrors: c.addErrors.Load(), LostAdds: c.lostAdds.Load(),
		Malformed: c.malformed.Load(),
		Rejected:  c.rejected.Load(), Failures: c.failures.Load(),
		Hidden: c.hidden.Load(), RolledBack: c.wentBack.Load(),
	}
	s.Unknown = s.Lost + s.Failed
	return s
}

// lookupCounters counts the results of lookups in memory. The counters are striped by the address
// of the goroutine's stack, so that goroutines on different cores rarely write to the same cache
// line.
type lookupCounters struct {
	_       [64]byte // keeps fields that each lookup reads out of the cache line of the first stripe
	stripes [64]struct {
		absent, present atomic.Int64
		_               [48]byte
	}
}

func (l *lookupCounters) count(maybe bool) {
	var here byte
	s := &l.stripes[uint64(uintptr(unsafe.Pointer(&here))>>11)*0x9e3779b97f4a7c15>>58]
	if maybe {
		s.present.Add(1)
	} else {
		s.absent.Add(1)
	}
}

// addTo adds the counts to s.
func (l *lookupCounters) addTo(s *Stats) {
	for i := range l.stripes {
		s.Absent += l.stripes[i].absent.Load()
		s.Present += l.stripes[i].present.Load()
	}
}
