package fetch

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// Round is one read of one key: its callers are fixed before the first look at Redis. It is what
// the read has come to, and in the end what it gives them.
type Round struct {
	Owner Owner
	Key   any // a pointer to the key

	Result
	identity
	snapshot
	wait
	step step
	terms
	ending
	refresh
	self [1]*Round // saves an allocation where it is alone
}

// Owner is what a round is part of.
type Owner interface {
	// Asked is when the first caller came, if the read has waited for another one; else zero.
	Asked() time.Time
}

// Result is what the callers of a round get.
type Result struct {
	Value       any // a pointer to one of the loader's type; nil where there is none
	Null        bool
	Unvalidated bool // Redis has not confirmed it
	Hit         bool // it was found, not loaded
	EndsSoon    bool // Warm is to refresh it
	Err         error
}

// identity is the key of a round.
type identity struct {
	text       string
	hash       uint64 // the hash of this process and loader
	name       string // in Redis
	sharedHash uint64 // the hash that all processes know it by
	nameHashed bool   // the name holds only a hash of the text
	slotRange  uint8  // the number of the range of slots that it is in
}

// Begin makes of a new Round that of a key. key is a pointer to the key, text the key's text, hash
// its hash in the memory tier.
func (r *Round) Begin(owner Owner, key any, text string, hash uint64) {
	r.Owner, r.Key, r.text, r.hash = owner, key, text, hash
}

// Text returns the text of the key, as it was when the round was made.
func (r *Round) Text() string { return r.text }

// snapshot is what was so before the first look at Redis: what is loaded, or read, is no older.
type snapshot struct {
	generation   *memory.Generation // the loader's, in the range of slots; an Invalidate of keys does not change it
	takenAt      time.Duration      // when that was taken, or before, on the bus's clock
	version      uint64             // of the key in the memory tier: any invalidation raises it
	outdated     bool               // an entry has shown that the loader's generation is outdated
	needsPrimary bool               // what is cached was expired, or is to be refreshed: a replica may not have heard of the change
	attempt      *lease.Attempt     // nil: Redis has not been asked, or is not to be
	beginning    []byte             // of a long entry
}

// terms are how a round may read and load.
type terms struct {
	how          How
	verdict      verdict // of the filter
	bypass       bool    // the caches are off
	withoutLease bool    // it loads without one
	onHold       bool    // since the key must not be cached: its writer says so, or a replica may lag
}

// wait is a round's wait for a load that is not its own.
type wait struct {
	onWaitEnd    func(error)   // called when the wait is over; nil: it does not wait
	waitingSince time.Duration // when the first one began, on the loader's clock; 0: not yet
	softDeadline time.Duration // when a stale value is given out, on that clock; 0: none has been found
	forFresh     bool          // it waits for a fresh value, and has a stale one
}

// ending is how a round's loads have ended.
type ending struct {
	refusals           uint8  // loads whose result was refused, since an invalidation came between
	storeFailed        bool   // Redis was lost while the value was being stored
	notAttempted       bool   // the database was not asked, which is no failure of the key
	inMemory           bool   // the value was put into the memory tier
	refreshedElsewhere bool   // another process refreshes the key
	failureEpoch       uint32 // how often the noted failures of such keys had been ended, before the load
	encoded            int    // the length of the value's encoding before compression; 0: it was not encoded
}

// refresh is what a round knows of the background refresh that it has found to be due, or, in a
// round of its own, is.
type refresh struct {
	due         bool // it is due
	early       bool // while the value is fresh
	stampKnown  bool // which entry is to be replaced: that of stamp
	stamp       lease.Token
	memoryUntil time.Time // else, when the value that is in memory ends: a later entry need not be replaced
}

// verdict is what a loader's filter has said of a round's key.
type verdict uint8

const (
	filterNotAsked verdict = iota
	filterFailed
	filterPassed
	filterRefused
	filterAudited // refused, and the database is asked all the same
)

// step is what is to be done next.
type step uint8

const (
	toBegin   step = iota
	toConfirm      // the generation
	toLookUp       // at what Redis holds
	toFetch        // the rest of a long entry
	toLease        // a lease, for there is nothing, or nothing that can be read
	toLoad
	toWait // for another's load
	ended
	completed
)

// How is how keys are read.
type How uint8

// The ways to read.
const (
	Plain   How = iota
	Fresh       // not from memory, nor what a filter answers that may be late
	Warming     // for Warm: the filter is not asked, and a value is not refreshed but reported: see EndsSoon
)

func (h How) applyTo(rounds []*Round) {
	for _, r := range rounds {
		r.how = h
	}
}

// Over tells whether the round has come to its end: then its Value, Null and Err are what its
// callers get.
func (r *Round) Ended() bool { return r.step >= ended }

// FilterRefused reports whether the filter has said that there is no such row.
func (r *Round) FilterRefused() bool { return r.verdict == filterRefused }

// Of makes a slice of one round.
func Single(r *Round) []*Round {
	r.self[0] = r
	return r.self[:]
}

// at returns the rounds that are at this step: rounds itself if all are.
func atStep(rounds []*Round, s step) (some []*Round) {
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

// Texts returns the texts of the keys of rounds.
func Texts(rounds []*Round) []string {
	texts := make([]string, len(rounds))
	for i, r := range rounds {
		texts[i] = r.text
	}
	return texts
}

// waits ends the wait for another's load, if it is one.
func (r *Round) endWait(err error) {
	if r.onWaitEnd != nil {
		r.onWaitEnd(err)
		r.onWaitEnd = nil
	}
}
