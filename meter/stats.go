package meter

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/measure"
)

// Stats count what a Meter has done since it was made. All of them only grow, but InFlight.
type Stats struct {
	Writes     int64 // that the Meter was told of: keys whose invalidation Redis has acknowledged to this process, and those of Written
	Sampled    int64 // of them, those that were taken
	Unreadable int64 // taken, but not looked at: this process has no such loader (of that version), or cannot make its key of a text
	Dropped    int64 // taken, but not looked at, or not at all times: MaxSamples
	InFlight   int64 // that are still to be looked at

	Questions       int64 // that were asked
	QuestionsFailed int64 // of them, those that Redis has not taken, or whose answers could not be fetched
	Asked           int64 // processes, added up: how many listened to each question
	Answered        int64 // of them, those that have answered
	Malformed       int64 // answers that could not be read

	Looks []Look // one for each of Options.After
}

// Look is what was found a time after the writes.
type Look struct {
	After time.Duration

	// Each write ends in one of these. A write is different if any copy is; consistent if all tiers
	// of all processes are known to have no different copy; else nobody can say.
	Consistent, Different, Undecided int64

	// Why it is undecided: the first of these that is so.
	Late       int64 // it was looked at too late to be of that time: this process, or Redis, was too slow
	Failed     int64 // its question has failed
	Unanswered int64 // not all processes have answered
	NotKnown   int64 // a process, or Redis, could not say

	Redis, Memory Copies
}

// Copies are what was found of the keys, in Redis or in the memory of all processes that have
// answered.
type Copies struct {
	None      int64 // nothing that would be served
	Young     int64 // read after the write (of Redis that is not known)
	Same      int64 // compared, and the same as the database; in Redis also one that was that before
	Different int64 // compared, and different
	NotKnown  int64 // could not be looked at, or compared; or has changed while it was
}

func (c *Copies) add(v measure.Verdict) {
	switch v {
	case measure.None:
		c.None++
	case measure.Young:
		c.Young++
	case measure.Same:
		c.Same++
	case measure.Different:
		c.Different++
	default:
		c.NotKnown++
	}
}

// Stats returns the counts. It does no I/O.
func (m *Meter) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Writes, s.Sampled, s.InFlight = m.writes.Load(), m.sampled.Load(), int64(m.inFlight)
	s.Looks = make([]Look, len(m.looks))
	copy(s.Looks, m.looks)
	return s
}

// Consistency is that of the writes looked at so long after; false if that is none of
// Options.After.
func (m *Meter) Consistency(after time.Duration) (c Consistency, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.looks {
		if l.After == after {
			return l.consistency(), true
		}
	}
	return Consistency{}, false
}

func (l Look) consistency() Consistency {
	c := Consistency{After: l.After, Samples: l.Consistent + l.Different, Different: l.Different, Undecided: l.Undecided}
	if c.Samples > 0 {
		c.Share = float64(c.Different) / float64(c.Samples)
	}
	c.Low, c.High = interval(c.Different, c.Samples)
	return c
}
