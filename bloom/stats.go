package bloom

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Stats counts what this process has asked a filter for, and added, since the start.
type Stats struct {
	Absent  int64 // keys that were certainly not there
	Present int64 // keys that may be there, since all their bits are set
	Unknown int64 // keys that may be there, since the filter could not say; of them:
	Lost    int64 // those whose part of the filter is gone, or which no filter has been built for
	Failed  int64 // those that could not be asked for

	FalsePositives int64 // keys that NotFound has told of; in front of a loader, or as a deny list, also those of Unknown that were not there

	Added     int64 // keys
	AddErrors int64 // calls of Add, AddMany, Admit, and what that returns, that failed
	LostAdds  int64 // parts of a filter that were found gone by an Add; their keys may be there, until a Rebuild
	Malformed int64 // times that what Redis holds in the place of the descriptor could not be read
	Hidden    int64 // reports of keys that the filter refuses although their rows exist. The first in 24 hours makes it answer "maybe" until it was rebuilt
	WentBack  int64 // times that this process has found Redis in a state from before what it had acknowledged: likewise

	Refused  int64 // rebuilt filters that have not taken their place, since rows would have been hidden: ErrFewer, ErrHides
	Failures int64 // checks and rebuilds of Maintain that have failed, with Refused

	// Of a Replica; zero without one.
	Copied     bool  // it answers "no" by itself now
	CopyBytes  int64 // that its copy takes; with the next one, while that is being made
	LostCopied int64 // parts of its copy that Redis has lost: their keys may be there, until a Rebuild
	TooLarge   bool  // the filter is larger than Options.MaxReplicaBytes, so it is not copied
	Copies     int64 // that were made
	Gaps       int64 // times that something may have been missed, as at the start and whenever the connection was lost: then the copy is made again
	Heard      int64 // announcements of other processes
}

// FalsePositiveRate is the measured rate, of the keys that are not there: 0 if there were none. It
// counts the keys that NotFound has told of.
func (s Stats) FalsePositiveRate() float64 {
	if s.FalsePositives == 0 {
		return 0
	}
	return float64(s.FalsePositives) / float64(s.FalsePositives+s.Absent)
}

// State is what is known of a filter itself.
type State struct {
	Built    bool    // it can answer "no"
	Building bool    // a Rebuild is under way, or was ended before it was through
	Capacity uint64  // keys that the filter was made for, which is what it was when it was built
	Rate     float64 // of false positives when it holds so many
	Bits     uint64  // of all its segments
	SetBits  uint64  // of them; those of lost segments do not count
	Keys     uint64  // about so many have been added, by the bits that are set
	Deleted  uint64  // rows that Deleted has told of since its rebuild began

	// Of a filter in Redis; zero of a Local.
	Generation   string    // the id of the present one: each rebuild makes another
	Hashes       uint64    // bits of each key
	Segments     uint64    // strings that its bits are in; of them:
	LostSegments uint64    // those that are gone, as by eviction, or are another's, or were cut short: their keys are "maybe", until a Rebuild
	Begun        time.Time // when its rebuild began, by the clock of the process that rebuilt
	Next         string    // the id of the generation that is being built
	NextBegun    time.Time // when that was begun
	Old          int       // generations that are still to be removed
}

// Fill is the part of the bits that are set: about a half at capacity.
func (s State) Fill() float64 {
	if s.Bits == 0 {
		return 0
	}
	return float64(s.SetBits) / float64(s.Bits)
}

// counts are the live form of Stats.
type counts struct {
	absent, present, lost, failed, falsePositives atomic.Int64
	added, addErrors, lostAdds, malformed         atomic.Int64
	refused, failures                             atomic.Int64
	hidden, wentBack                              atomic.Int64
}

// looked counts the answers to a lookup: maybe, of which unsure are of what is lost, or failed: all
// of them, if there was an error.
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
		Absent: c.absent.Load(), Present: c.present.Load(), Lost: c.lost.Load(), Failed: c.failed.Load(), FalsePositives: c.falsePositives.Load(),
		Added: c.added.Load(), AddErrors: c.addErrors.Load(), LostAdds: c.lostAdds.Load(), Malformed: c.malformed.Load(),
		Refused: c.refused.Load(), Failures: c.failures.Load(),
		Hidden: c.hidden.Load(), WentBack: c.wentBack.Load(),
	}
	s.Unknown = s.Lost + s.Failed
	return s
}

// looks counts the results of lookups in the process's memory. It is striped by the address of the
// goroutine's stack, so that goroutines on different cores rarely write to the same cache line.
type lookupCounters struct {
	_       [64]byte // so that what is read at each lookup does not stand in the cache line of the first
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

// addTo adds what was counted to s.
func (l *lookupCounters) addTo(s *Stats) {
	for i := range l.stripes {
		s.Absent += l.stripes[i].absent.Load()
		s.Present += l.stripes[i].present.Load()
	}
}
