package fetch

import (
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// seen is what a look at a key has shown.
type finding uint8

const (
	foundNothing       finding = iota
	foundFresh                 // a value, or that there is no row, within its TTL
	foundStale                 // after its TTL, within its hard life
	foundFailing               // the same, and its reload failed a moment ago
	foundTooOld                // a value that is older than this loader's options allow
	foundPartial               // of an entry that is longer than the first look
	foundUnreadable            // what this version, or this loader's codec, cannot read
	foundOldGeneration         // an entry of a loader generation that an InvalidateAll has ended
	foundNewGeneration         // an entry of a loader generation that this process has not heard of
	foundOwnLease              // this read's load may begin
	foundOtherLease            // another's load is under way
	foundHold                  // writers keep the key from being cached
	foundFailure               // its load failed a moment ago
	foundNoRedis               // Redis could not be asked
	foundWrongClient           // Redis cannot be asked by this client
)

// kinds are what kinds of states show, but for lease.Stored.
var findingOf = [...]finding{
	lease.Absent: foundNothing, lease.Busy: foundOtherLease, lease.Mine: foundOwnLease,
	lease.Failed: foundFailure, lease.Unknown: foundUnreadable, lease.Held: foundHold,
}

// standing is what a read has come to before the look.
type readState struct {
	Refresh             bool // it loads whatever the key holds
	Background          bool // and nobody waits for it
	GenerationConfirmed bool // it has asked for the loader's generation once more, since an entry was newer
	WaitsForFresh       bool // its callers are not to be given a stale value yet (SoftTimeout)
	HasStale            bool // it has found a stale value, and nothing has overtaken its load since
	Down                DownPolicy
}

// action is what a read does next.
type action uint8

const (
	doServe             action = iota // to its callers: it is fresh
	doServeStale                      // value to its callers
	doWaitForFresh                    // until its soft deadline: another loads it, or a background refresh
	doWaitForLoad                     // of another
	doTakeLease                       // to load it
	doLoad                            // under the lease
	doLoadWithoutLease                // and store nothing
	doLoadOnHold                      // the same, since the key is on hold
	doFetchRest                       // of the entry
	doReplace                         // the entry, with a lease as if there were none
	doConfirmGeneration               // of the loader, and look again
	doFail                            // with the error of the load that failed a moment ago
	doFailRedis                       // with the error of Redis
	doServeMemory                     // what memory holds, trusted or not; if that is nothing, failRedis
	doLeaveToOthers                   // they do it, or have done it
)

// decide says what a read does after a look at its key. It is the same for all ways to read: Get,
// GetMany, Fresh, Warm, Refresh, a reload after Expire, background refreshes, and the reads of a
// shadow.
func decide(found finding, s readState) action {
	switch {
	case found == foundNoRedis || found == foundWrongClient:
		return decideWithoutRedis(found, s)
	case s.Refresh:
		return decideRefresh(found, s)
	}
	switch found {
	case foundFresh:
		return doServe
	case foundStale, foundFailing:
		if s.WaitsForFresh && found == foundStale { // what failed a moment ago would be waited for in vain
			return doWaitForFresh
		}
		return doServeStale
	case foundPartial:
		return doFetchRest
	case foundNewGeneration:
		if s.GenerationConfirmed {
			return doReplace // its generation is one that Redis does not know any more
		}
		return doConfirmGeneration
	case foundOldGeneration, foundTooOld, foundUnreadable:
		return doReplace
	case foundOwnLease:
		return doLoad
	case foundOtherLease:
		return doWaitForLoad
	case foundHold:
		return doLoadOnHold
	case foundFailure:
		return doFail
	default:
		return doTakeLease
	}
}

// decideRefresh is decide for a read that has claimed the key, whatever it holds.
func decideRefresh(found finding, s readState) action {
	switch {
	case found == foundOwnLease:
		return doLoad
	case s.Background:
		return doLeaveToOthers
	case found == foundHold:
		return doLoadOnHold
	default:
		return doWaitForLoad
	}
}

// decideWithoutRedis is decide where Redis could not be asked: see LoaderOptions.RedisDown.
func decideWithoutRedis(found finding, s readState) action {
	switch {
	case found == foundWrongClient || s.Refresh: // it will not come back; or Refresh reports the error
		return doFailRedis
	case s.HasStale: // Redis was lost while a fresh value was waited for: the stale one was there when the callers asked
		return doServeStale
	case s.Down == LoadWhenDown:
		return doLoadWithoutLease
	case s.Down == StaleWhenDown:
		return doServeMemory
	default:
		return doFailRedis
	}
}

// standing is what a read has come to that has seen so much.
func (f *Fetcher) readState(r *Round, found finding) readState {
	down := f.RedisDown
	if r.how == Warming {
		down = FailWhenDown
	}
	return readState{
		GenerationConfirmed: r.outdated,
		WaitsForFresh:       found == foundStale && f.waitsForFresh(r),
		HasStale:            r.softDeadline > 0 && r.refusals == 0,
		Down:                down,
	}
}

// waitsForFresh tells whether the callers of a round that has found a stale value wait for a fresh
// one: until SoftTimeout has passed since they asked.
func (f *Fetcher) waitsForFresh(r *Round) bool {
	wait := f.SoftTimeout
	if wait <= 0 {
		return false
	}
	now := max(time.Since(f.start), 1)
	if r.softDeadline == 0 {
		r.softDeadline = now + wait
		if asked := r.Owner.Asked(); !asked.IsZero() { // its callers have waited for the round before
			r.softDeadline = max(asked.Sub(f.start)+wait, 1)
		}
	}
	return now < r.softDeadline
}

// act does what decide says of a round that has seen this. state is what the key holds. err is why
// it is unreadable, or why Redis could not be asked.
func (f *Fetcher) act(r *Round, found finding, read readState, state *lease.State, err error) {
	next := decide(found, read)
	if next == doServeMemory {
		next = doFailRedis
		if r.how != Fresh && f.fillFromMemory(r) {
			r.Unvalidated, next = true, doServeStale
		}
	}
	switch next {
	case doServe:
		f.putEntryInMemory(r, &state.Entry)
		r.step = ended
		f.countHit(r)
	case doServeStale:
		f.serveStale(r)
		if state != nil {
			f.countHit(r)
		}
	case doWaitForFresh:
		r.forFresh, r.step = true, toWait
	case doFetchRest:
		r.beginning, r.step = state.Raw, toFetch
	case doConfirmGeneration: // another process knows of an InvalidateAll that this one has not heard of
		r.outdated = true
		f.restart(r)
	case doReplace:
		f.countReplaced(found, err)
		f.attempt(r).State = lease.State{Kind: lease.Unknown, Raw: state.Raw} // for Take
		r.step = toLease
	case doTakeLease:
		f.attempt(r).State = *state // for Take
		r.step = toLease
	case doLoad:
		r.endWait(nil)
		r.step = toLoad
		if read.Background {
			f.countRefresh(r)
		}
	case doLoadOnHold:
		r.onHold, r.withoutLease, r.step = true, true, toLoad
	case doLoadWithoutLease: // once for the process
		r.withoutLease, r.step = true, toLoad
	case doWaitForLoad:
		r.step = toWait
	case doLeaveToOthers:
		r.step, r.refreshedElsewhere = ended, found == foundOtherLease
	case doFail:
		f.Counters.FailedByMark.Add(1)
		r.Err, r.step = f.Source.Failures.Err(r.text), ended
	default:
		r.Err, r.step = fault.OfRedis(err), ended
	}
}

// withoutRedis continues a round for which Redis could not be asked.
func (f *Fetcher) withoutRedis(r *Round, err error) {
	f.Counters.RedisDown.Add(1)
	found := foundNoRedis
	if errors.Is(err, conn.ErrWrongClient) {
		found = foundWrongClient
	}
	f.act(r, found, f.readState(r, found), nil, err)
}

// countReplaced counts an entry that does not count, and is loaded again.
func (f *Fetcher) countReplaced(found finding, unread error) {
	if found != foundUnreadable {
		f.Counters.Outdated.Add(1)
		return
	}
	f.Counters.Undecodable.Add(1)
	f.cache.Warn("an entry in Redis is unreadable, and is replaced", f.Name, unread)
}
