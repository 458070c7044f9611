package fetch

import "github.com/cacheaside/cacheaside/internal/lease"

// seen is what a look at a key has shown.
type seen uint8

const (
	seenNothing     seen = iota
	seenFresh            // a value, or that there is no row, within its TTL
	seenStale            // after its TTL, within its hard life
	seenFailing          // the same, and its reload failed a moment ago
	seenOutlived         // a value that is older than this loader's options allow
	seenBeginning        // of an entry that is longer than the first look
	seenUnreadable       // what this version, or this loader's codec, cannot read
	seenOlder            // an entry of a loader generation that an InvalidateAll has ended
	seenNewer            // an entry of a loader generation that this process has not heard of
	seenOwnLease         // this read's load may begin
	seenLease            // another's load is under way
	seenHold             // writers keep the key from being cached
	seenFailure          // its load failed a moment ago
	seenNoAnswer         // Redis could not be asked
	seenWrongClient      // Redis cannot be asked by this client
)

// standing is what a read has come to before the look.
type standing struct {
	Refresh       bool // it loads whatever the key holds
	Background    bool // and nobody waits for it
	AskedAgain    bool // it has asked for the loader's generation once more, since an entry was newer
	WaitsForFresh bool // its callers are not to be given a stale value yet (SoftTimeout)
	HasStale      bool // it has found a stale value, and nothing has overtaken its load since
	Down          DownPolicy
}

// action is what a read does next.
type action uint8

const (
	giveValue        action = iota // to its callers: it is fresh
	giveStale                      // value to its callers
	waitForFresh                   // until its soft deadline: another loads it, or a background refresh
	waitForLoad                    // of another
	takeLease                      // to load it
	load                           // under the lease
	loadWithoutLease               // and store nothing
	loadOnHold                     // the same, since the key is on hold
	fetchRest                      // of the entry
	replace                        // the entry, with a lease as if there were none
	askGeneration                  // of the loader, and look again
	fail                           // with the error of the load that failed a moment ago
	failRedis                      // with the error of Redis
	giveMemory                     // what memory holds, trusted or not; if that is nothing, failRedis
	leaveToOthers                  // they do it, or have done it
	claim                          // the entry, to load its value anew
)

// decide says what a read does after a look at its key. It is the same for all ways to read: Get,
// GetMany, Fresh, Warm, Refresh, a reload after Expire, background refreshes, and the reads of a
// shadow.
func decide(what seen, s standing) action {
	switch {
	case what == seenNoAnswer || what == seenWrongClient:
		return decideWithoutRedis(what, s)
	case s.Refresh:
		return decideRefresh(what, s)
	}
	switch what {
	case seenFresh:
		return giveValue
	case seenStale, seenFailing:
		if s.WaitsForFresh && what == seenStale { // what failed a moment ago would be waited for in vain
			return waitForFresh
		}
		return giveStale
	case seenBeginning:
		return fetchRest
	case seenNewer:
		if s.AskedAgain {
			return replace // its generation is one that Redis does not know any more
		}
		return askGeneration
	case seenOlder, seenOutlived, seenUnreadable:
		return replace
	case seenOwnLease:
		return load
	case seenLease:
		return waitForLoad
	case seenHold:
		return loadOnHold
	case seenFailure:
		return fail
	default:
		return takeLease
	}
}

// decideRefresh is decide for a read that has claimed the key, whatever it holds.
func decideRefresh(what seen, s standing) action {
	switch {
	case what == seenOwnLease:
		return load
	case s.Background:
		return leaveToOthers
	case what == seenHold:
		return loadOnHold
	default:
		return waitForLoad
	}
}

// decideWithoutRedis is decide where Redis could not be asked: see LoaderOptions.RedisDown.
func decideWithoutRedis(what seen, s standing) action {
	switch {
	case what == seenWrongClient || s.Refresh: // it will not come back; or Refresh reports the error
		return failRedis
	case s.HasStale: // Redis was lost while a fresh value was waited for: the stale one was there when the callers asked
		return giveStale
	case s.Down == LoadWhenDown:
		return loadWithoutLease
	case s.Down == StaleWhenDown:
		return giveMemory
	default:
		return failRedis
	}
}

// decideAhead is decide for Warm, which looks before it reads: takeLease is for keys that it reads
// then, claim for those that it refreshes. ends says that less than half of the TTL is left, taken
// that the value is being loaded anew.
func decideAhead(what seen, ends, taken bool) action {
	switch {
	case what == seenFailing:
		return fail
	case what == seenFresh && (!ends || taken), what == seenStale && taken:
		return giveValue
	case what == seenFresh, what == seenStale:
		return claim
	default:
		return takeLease
	}
}

// kinds are what kinds of states show, but for lease.Stored.
var kinds = [...]seen{
	lease.Absent: seenNothing, lease.Busy: seenLease, lease.Mine: seenOwnLease,
	lease.Failed: seenFailure, lease.Unknown: seenUnreadable, lease.Held: seenHold,
}
