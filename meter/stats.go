package meter

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/measure"
)

// Stats are the counters of a Meter since New. All of them except InFlight only grow.
type Stats struct {
	Writes  int64 // keys whose invalidation Redis has acknowledged to this process, and keys passed to Written
	Sampled int64 // keys in Writes that were sampled
	// sampled, but not checked: this process does not have the loader in that version, or cannot
	// convert the text to a key
	Unreadable int64
	Dropped    int64 // sampled, but not checked, because of MaxSamples
	InFlight   int64 // samples that wait for a check

	Questions       int64 // questions asked
	QuestionsFailed int64 // questions that Redis did not accept, or whose replies could not be read
	// the replies that were expected, summed over all questions: one from each process that was
	// subscribed, or 100 from more processes
	Asked     int64
	Answered  int64 // replies
	Malformed int64 // invalid replies

	Results []Result // one for each of Options.After
}

// A Result holds the results of the checks at one time after the writes.
type Result struct {
	After time.Duration

	// Each check has one of these results. It is Different if any copy is different; Consistent
	// if all tiers of all processes are known to have no different copy; and Undecided otherwise.
	Consistent, Different, Undecided int64

	// The reason why a check is undecided: the first that applies.
	Late       int64 // the check was too late to count for its time: this process or Redis was too slow
	Failed     int64 // its question failed
	Unanswered int64 // not all processes replied, or in a large fleet clearly fewer than expected
	NotKnown   int64 // the state of a copy in a process or in Redis is unknown

	Redis, Memory Copies

	// the sums over all decided checks of the processes that were subscribed, and of those that
	// replied
	Listening, Replied int64
}

// Copies counts the states of copies, in Redis or in the memory of all processes that replied.
type Copies struct {
	None      int64 // no copy that would be served
	Young     int64 // read after the write; memory only
	Same      int64 // compared, and equal to the database; in Redis also if the same entry was equal before
	Different int64 // compared, and different
	NotKnown  int64 // could not be checked or compared, or changed during the check
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

// Stats returns the counters. It does no I/O.
func (m *Meter) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Writes, s.Sampled, s.InFlight = m.writes.Load(), m.sampled.Load(), int64(m.inFlight)
	s.Results = make([]Result, len(m.results))
	copy(s.Results, m.results)
	return s
}

// Consistency returns the result of the checks after the time after. ok is false if after is not
// in Options.After.
func (m *Meter) Consistency(after time.Duration) (c Consistency, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.results {
		if l.After == after {
			return l.consistency(), true
		}
	}
	return Consistency{}, false
}

func (r Result) consistency() Consistency {
	c := Consistency{After: r.After, Samples: r.Consistent + r.Different, Different: r.Different,
		Undecided: r.Undecided}
	if c.Samples > 0 {
		c.Share = float64(c.Different) / float64(c.Samples)
	}
	c.Low, c.High = interval(c.Different, c.Samples)
	if r.Listening > 0 {
		c.Replied = float64(r.Replied) / float64(r.Listening)
		c.High = min(1, c.High/max(c.Replied, 1e-9))
	}
	return c
}
