package fetch

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// A Round is one read of one key, shared by all callers that asked before it started. It holds the
// state of the read, and at its end the result for the callers. Its Owner is a flight.Round, which
// holds the callers: the Result of that flight.Round is this Round.
type Round struct {
	Owner Owner
	Key   any // pointer to the key

	Result
	identity
	snapshot
	wait
	step step
	terms
	ending
	refresh
	self [1]*Round // saves an allocation for single rounds
}

// An Owner is the round of package flight that contains a Round.
type Owner interface {
	// Asked returns when the first caller came, if the round has waited for another one;
	// otherwise the zero time.
	Asked() time.Time
}

// A Result is the result of a round for its callers.
type Result struct {
	Value       any // pointer to a value of the loader's type; nil if there is none
	Null        bool
	Unvalidated bool // Redis has not confirmed the value
	Hit         bool // the value was found, not loaded
	EndsSoon    bool // Warm must refresh the value
	LoadTried   bool // the load function was called, or a limit on loads refused the call
	Err         error
}

// identity is the key of a round.
type identity struct {
	text       string
	hash       uint64 // in this process and loader
	name       string // in Redis
	sharedHash uint64 // of the key, the same in all processes
	nameHashed bool   // name contains only a hash of text
	slotRange  uint8  // number of the range of slots that contains the key
}

// Begin initializes a new Round. key is a pointer to the key, text is the key's text, and hash is
// its hash in the memory tier.
func (r *Round) Begin(owner Owner, key any, text string, hash uint64) {
	r.Owner, r.Key, r.text, r.hash = owner, key, text, hash
}

// Text returns the text that the key had when the round was created.
func (r *Round) Text() string { return r.text }

// A snapshot holds what was taken before the first lookup in Redis, so everything that the round
// reads or loads is at least as new. It also holds what the lookups have found.
type snapshot struct {
	generation *memory.Generation // the loader's, in the range of slots; an Invalidate of keys does not change it
	takenAt    time.Duration      // a time before the snapshot, on the bus's clock
	version    uint64             // of the key in the memory tier; each invalidation raises it
	// the last number of the log of groups: before the load, or of the entry that was read
	known        uint64
	allGroups    uint64         // the version of all groups in the memory tier
	outdated     bool           // an entry has shown that the loader's generation is outdated
	needsPrimary bool           // the key was expired or is being refreshed, and a replica may lack the change
	attempt      *lease.Attempt // nil if Redis was not asked
	beginning    []byte         // of a long entry
	groups       groups.Set     // of the value
	item         *memory.Header // the item that contains the decoded value, until it is in memory; or nil
}

// terms determine how a round may read and load.
type terms struct {
	mode         Mode
	verdict      verdict // of the filter
	bypass       bool    // the caches are off
	withoutLease bool    // the round loads without a lease
	// a group of the loaded value was invalidated within ReplicaLag before the load, so the value
	// is not cached
	groupsHeld bool
	// because the key must not be cached: a writer holds it, a replica may lag, or the value is
	// unstorable
	notCached bool
	// why the value cannot be stored: found in a marker, or by this load; 0 if it can be, or if it
	// is not known
	unstorable lease.Reason
}

// wait is a round's wait for another round's load.
type wait struct {
	onWaitEnd    func(error)   // called when the wait ends; nil if the round does not wait
	waitingSince time.Duration // when the first wait began, on the loader's clock; 0 before that
	softDeadline time.Duration // when a stale value is returned, on the same clock; 0 if none was found
	forFresh     bool          // the round has a stale value, and waits for a fresh one
	lease        lease.Token   // the lease of the load for which the round waits; zero: it is a refresh
	awaited      bool          // the end of that load will be announced
	counted      bool          // that lease counts this process among those who wait for its end
	leaseEnds    time.Duration // when that lease ends unless it is renewed, on the same clock; 0: not known
}

// ending is the outcome of a round's loads.
type ending struct {
	refusals           uint8          // loads whose store Redis refused, because an invalidation had removed the lease
	storeFailed        bool           // Redis failed while the value was being stored
	notAttempted       bool           // the load function was not called, so the key has not failed
	inMemory           bool           // the value is in the memory tier
	groupVersions      *memory.Groups // of the value in the memory tier
	refreshedElsewhere bool           // another process is refreshing the key
	failureEpoch       uint32         // source.Failures.Epoch of the key before the load
	encoded            int            // length of the value's encoding before compression; 0 if it was not encoded
}

// refresh describes the background refresh that a round has found to be due, or that it runs.
type refresh struct {
	due        bool // the refresh is due
	early      bool // the value is still fresh
	stampKnown bool // stamp is the stamp of the entry to replace
	stamp      lease.Token
	// if the stamp is unknown: the end of the TTL in memory; an entry that ends later is newer, and
	// is not replaced
	memoryUntil time.Time
}

// A verdict is the result of a loader's filter for a round's key.
type verdict uint8

const (
	filterNotAsked verdict = iota
	filterFailed
	filterPassed
	filterRefused
	filterAudited // refused, and the database is asked to audit the filter
)

// A step is the next step of a round.
type step uint8

const (
	toBegin     step = iota
	toConfirm        // ask for the loader's generation
	toLookUp         // read what Redis holds
	toTakeFirst      // read what Redis holds, and request a lease if that is nothing
	toFetch          // read the rest of a long entry
	toLease          // request a lease, because there is no readable entry
	toLoad
	toWait // wait for another round's load
	ended
	completed
)

// Mode is a way to read keys.
type Mode uint8

// The ways to read.
const (
	Plain   Mode = iota
	Fresh        // skips memory, and any result of a filter that may be outdated
	Warming      // for Warm: skips the filter, and reports values to refresh: see EndsSoon
)

func (m Mode) applyTo(rounds []*Round) {
	for _, r := range rounds {
		r.mode = m
	}
}

// Ended reports whether the round has ended. Then its Value, Null and Err are the result for its
// callers.
func (r *Round) Ended() bool { return r.step >= ended }

// FilterRefused reports whether the filter has refused the key, so that there is no row.
func (r *Round) FilterRefused() bool { return r.verdict == filterRefused }

// Single returns a slice of one round, without an allocation.
func Single(r *Round) []*Round {
	r.self[0] = r
	return r.self[:]
}

// atStep returns the rounds that are at this step. If all are, it returns rounds itself.
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

// names returns the names of rounds in Redis.
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

// endWait ends the wait for another round's load, if there is one.
func (r *Round) endWait(err error) {
	if r.onWaitEnd != nil {
		r.onWaitEnd(err)
		r.onWaitEnd = nil
	}
}
