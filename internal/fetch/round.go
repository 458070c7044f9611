package fetch

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
)

// Round is one read of one key: its callers are fixed before the first look at Redis. It is what
// the read is at, and in the end what it gives them.
type Round struct {
	Owner any       // the round that it is of: it tells Items and Query the key
	Asked time.Time // when the first caller came, if the read has waited for another one; else zero

	Value       any // of the loader's type; nil where there is none
	Null        bool
	Unvalidated bool // Redis has not confirmed it
	Hit         bool // it was found, not loaded
	Err         error

	step       step
	text       string // the key's
	name       string // in Redis
	hashed     bool   // the name holds only a hash of the text
	stable     uint64
	place      uint8          // the range of keys that it is in
	era        *local.Era     // of the loader, there, as it was before the first look at Redis
	read       time.Duration  // when that was taken, or before, on the channel's clock
	generation uint64         // of the key in the memory tier, likewise
	behind     bool           // an entry has shown that the era is over
	attempt    *lease.Attempt // nil: Redis has not been asked, or is not to be
	beginning  []byte         // of a long entry
	bypass     bool
	alone      bool        // loads without a lease
	held       bool        // since the key is on hold
	unsifted   bool        // the filter is not to be asked
	waiting    func(error) // for another's load; called when that is over. nil: it does not wait
	verdict    verdict
	fresh      bool // not from memory
	lost       bool // Redis was lost while the value was being stored
	spared     bool // the database was not asked, which is no failure of the key
	remembered bool // it was put into the memory tier
	refusals   uint8
	ends       uint32        // how often the failures of such keys had been ended, before the load
	waited     time.Duration // when the first wait for another's load began, on the loader's clock; 0: not yet
	patience   time.Duration // when a stale value is given out, on that clock; 0: none has been found
	soft       bool          // it waits for a fresh one
	renewal
	self [1]*Round // saves an allocation where it is alone
}

// step is what is to be done next.
type step uint8

const (
	toBegin step = iota
	toAsk        // the filter
	toLearn      // the era
	toLook       // at what Redis holds
	toFetch      // the rest of a long entry
	toTake       // a lease, for there is nothing, or nothing that can be read
	toLoad
	toWait // for another's load
	over
	landed
)

// How is how keys are read.
type How uint8

// The ways to read.
const (
	Plain      How = iota
	Fresh          // not from memory, nor what a filter answers that may be late
	Unfiltered     // the filter is not asked
)

func (h How) of(rounds []*Round) {
	if h == Plain {
		return
	}
	for _, r := range rounds {
		r.fresh, r.unsifted = h == Fresh, h == Unfiltered
	}
}

// Over tells whether the round has come to its end: then its Value, Null and Err are what its
// callers get.
func (r *Round) Over() bool { return r.step >= over }

// Refused tells whether the filter has said that there is no such row.
func (r *Round) Refused() bool { return r.verdict == refused }

// Of makes a slice of one round.
func Of(r *Round) []*Round {
	r.self[0] = r
	return r.self[:]
}

// at returns the rounds that are at this step: rounds itself if all are.
func at(rounds []*Round, s step) (some []*Round) {
	n := 0
	for _, r := range rounds {
		if r.step == s {
			n++
		}
	}
	if n == len(rounds) {
		return rounds
	}
	if n == 0 {
		return nil
	}
	some = make([]*Round, 0, n)
	for _, r := range rounds {
		if r.step == s {
			some = append(some, r)
		}
	}
	return some
}

// names are what the keys of rounds are called in Redis.
func names(rounds []*Round) []string {
	names := make([]string, len(rounds))
	for i, r := range rounds {
		names[i] = r.name
	}
	return names
}

// textsOf are the texts of the keys of rounds.
func textsOf(rounds []*Round) []string {
	texts := make([]string, len(rounds))
	for i, r := range rounds {
		texts[i] = r.text
	}
	return texts
}

// waits ends the wait for another's load, if it is one.
func (s *Round) waits(err error) {
	if s.waiting != nil {
		s.waiting(err)
		s.waiting = nil
	}
}

// Snapshot is under what the memory tier may hold the round's value: the range of the key, the
// loader's generation there, the key's stable hash, and its generation in the tier.
func (r *Round) Snapshot() (place uint8, era *local.Era, stable, generation uint64) {
	return r.place, r.era, r.stable, r.generation
}
