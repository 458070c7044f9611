package fetch

import (
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
)

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

// kinds are what kinds of states show, but for lease.Stored.
var kinds = [...]seen{
	lease.Absent: seenNothing, lease.Busy: seenLease, lease.Mine: seenOwnLease,
	lease.Failed: seenFailure, lease.Unknown: seenUnreadable, lease.Held: seenHold,
}

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

// standing is what a read has come to that has seen so much.
func (l *Fetcher) standing(r *Round, what seen) standing {
	down := l.RedisDown
	if r.how == Warming {
		down = FailWhenDown
	}
	return standing{
		AskedAgain:    r.outdated,
		WaitsForFresh: what == seenStale && l.waitsForFresh(r),
		HasStale:      r.softDeadline > 0 && r.refusals == 0,
		Down:          down,
	}
}

// waitsForFresh tells whether the callers of a round that has found a stale value wait for a fresh
// one: until SoftTimeout has passed since they asked.
func (l *Fetcher) waitsForFresh(r *Round) bool {
	wait := l.SoftTimeout
	if wait <= 0 {
		return false
	}
	now := max(time.Since(l.start), 1)
	if r.softDeadline == 0 {
		r.softDeadline = now + wait
		if asked := r.Owner.Asked(); !asked.IsZero() { // its callers have waited for the round before
			r.softDeadline = max(asked.Sub(l.start)+wait, 1)
		}
	}
	return now < r.softDeadline
}

// act does what decide says of a round that has seen this. state is what the key holds. err is why
// it is unreadable, or why Redis could not be asked.
func (l *Fetcher) act(r *Round, what seen, at standing, state *lease.State, err error) {
	next := decide(what, at)
	if next == giveMemory {
		next = failRedis
		if r.how != Fresh && l.fromMemory(r) {
			r.Unvalidated, next = true, giveStale
		}
	}
	switch next {
	case giveValue:
		l.putEntryInMemory(r, &state.Entry)
		r.step = over
		l.countHit(r)
	case giveStale:
		l.giveStale(r)
		if state != nil {
			l.countHit(r)
		}
	case waitForFresh:
		r.forFresh, r.step = true, toWait
	case fetchRest:
		r.beginning, r.step = state.Raw, toFetch
	case askGeneration: // another process knows of an InvalidateAll that this one has not heard of
		r.outdated = true
		l.again(r)
	case replace:
		l.countReplaced(what, err)
		l.attempt(r).State = lease.State{Kind: lease.Unknown, Raw: state.Raw} // for Take
		r.step = toTake
	case takeLease:
		l.attempt(r).State = *state // for Take
		r.step = toTake
	case load:
		r.waits(nil)
		r.step = toLoad
		if at.Background {
			l.countRefresh(r)
		}
	case loadOnHold:
		r.onHold, r.withoutLease, r.step = true, true, toLoad
	case loadWithoutLease: // once for the process
		r.withoutLease, r.step = true, toLoad
	case waitForLoad:
		r.step = toWait
	case leaveToOthers:
		r.step, r.busy = over, what == seenLease
	case fail:
		l.Counters.FailedByMark.Add(1)
		r.Err, r.step = l.Source.Failures.Err(r.text), over
	default:
		r.Err, r.step = fault.OfRedis(err), over
	}
}

// withoutRedis continues a round for which Redis could not be asked.
func (l *Fetcher) withoutRedis(r *Round, err error) {
	l.Counters.RedisDown.Add(1)
	what := seenNoAnswer
	if errors.Is(err, conn.ErrWrongClient) {
		what = seenWrongClient
	}
	l.act(r, what, l.standing(r, what), nil, err)
}

// countReplaced counts an entry that does not count, and is loaded again.
func (l *Fetcher) countReplaced(what seen, unread error) {
	if what != seenUnreadable {
		l.Counters.Outdated.Add(1)
		return
	}
	l.Counters.Undecodable.Add(1)
	l.cache.Warn("an entry in Redis is unreadable, and is replaced", l.Name, unread)
}
