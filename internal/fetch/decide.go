package fetch

import (
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// A finding is the result of a lookup of a key in Redis.
type finding uint8

const (
	foundNothing       finding = iota
	foundFresh                 // a value, or an absence, within its TTL
	foundStale                 // past its TTL, within its hard life
	foundFailing               // the same, and its reload failed a moment ago
	foundTooOld                // a value that is older than this loader's options allow
	foundPartial               // the beginning of an entry that is longer than the first read
	foundUnreadable            // an entry that this version, or this loader's codec, cannot read
	foundOutdated              // an entry from before an InvalidateAll, or before the invalidation of one of its groups
	foundNewGeneration         // an entry of a loader generation that this process does not know
	foundOwnLease              // this read has the lease and may load
	foundOtherLease            // another read has the lease
	foundHold                  // writers keep the key from being cached
	foundUnstorable            // a load has just returned a value that cannot be stored
	foundFailure               // a failure marker: the load failed a moment ago
	foundNoRedis               // Redis did not reply
	foundWrongClient           // this client cannot be used with this Redis
)

// findingOf is the finding for each kind of state except lease.Stored.
var findingOf = [...]finding{
	lease.Absent: foundNothing, lease.Busy: foundOtherLease, lease.Mine: foundOwnLease,
	lease.Failed: foundFailure, lease.Unknown: foundUnreadable, lease.Held: foundHold,
	lease.Unstorable: foundUnstorable,
}

// readState is the part of the state of a read that decide needs.
type readState struct {
	Refresh             bool // the read loads the row regardless of what the key holds
	Background          bool // a refresh for which no caller waits
	GenerationConfirmed bool // an entry was newer, and the loader's generation was confirmed again since
	WaitsForFresh       bool // the callers do not accept a stale value yet (SoftTimeout)
	HasStale            bool // the read has found a stale value, and no store of its loads was refused since
	Down                DownPolicy
}

// An action is the next step of a read.
type action uint8

const (
	doServe             action = iota // return the value, which is fresh
	doServeStale                      // return the stale value
	doWaitForFresh                    // wait until the soft deadline for another load, or for a background refresh
	doWaitForLoad                     // wait for another read's load
	doTakeLease                       // request the lease
	doLoad                            // load the row under the lease
	doLoadWithoutLease                // load the row and do not store it
	doLoadOnHold                      // the same, because the key is on hold
	doLoadUnstorable                  // the same, because the value cannot be stored
	doFetchRest                       // read the rest of the entry
	doReplace                         // treat the entry as missing, and request the lease
	doConfirmGeneration               // confirm the loader's generation, and look up the key again
	doFail                            // return the error of the load that failed a moment ago
	doFailRedis                       // return the error of Redis
	doServeMemory                     // return what memory holds, trusted or not; if nothing, the error of Redis
	doLeaveToOthers                   // end: another process refreshes the key, or has done so
)

// decide returns the next action of a read after a lookup of its key. All kinds of reads use it:
// Get, GetMany, Fresh, Warm, Refresh, a reload after Expire, background refreshes, and the reads
// of a shadow.
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
		if s.WaitsForFresh && found == foundStale { // not for foundFailing: no new value is on its way
			return doWaitForFresh
		}
		return doServeStale
	case foundPartial:
		return doFetchRest
	case foundNewGeneration:
		if s.GenerationConfirmed {
			return doReplace // Redis no longer knows the entry's generation
		}
		return doConfirmGeneration
	case foundOutdated, foundTooOld, foundUnreadable:
		return doReplace
	case foundOwnLease:
		return doLoad
	case foundOtherLease:
		return doWaitForLoad
	case foundHold:
		return doLoadOnHold
	case foundUnstorable:
		return doLoadUnstorable
	case foundFailure:
		return doFail
	default:
		return doTakeLease
	}
}

// decideRefresh is decide for a read that has claimed the key regardless of what it holds.
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

// decideWithoutRedis is decide for a read that could not ask Redis: see LoaderOptions.RedisDown.
func decideWithoutRedis(found finding, s readState) action {
	switch {
	case found == foundWrongClient || s.Refresh:
		// a later attempt with a wrong client fails too; and Refresh returns errors of Redis
		return doFailRedis
	case s.HasStale: // Redis failed during the wait for a fresh value; the callers may get the stale one
		return doServeStale
	case s.Down == LoadWhenDown:
		return doLoadWithoutLease
	case s.Down == StaleWhenDown:
		return doServeMemory
	default:
		return doFailRedis
	}
}

// readState returns the state of a read that has this finding.
func (f *Fetcher) readState(r *Round, found finding) readState {
	down := f.RedisDown
	if r.mode == Warming {
		down = FailWhenDown
	}
	return readState{
		GenerationConfirmed: r.outdated,
		WaitsForFresh:       found == foundStale && f.waitsForFresh(r),
		HasStale:            r.softDeadline > 0 && r.refusals == 0,
		Down:                down,
	}
}

// waitsForFresh reports whether the callers of a round that has found a stale value still wait
// for a fresh one. They do until SoftTimeout has passed since they asked.
func (f *Fetcher) waitsForFresh(r *Round) bool {
	wait := f.SoftTimeout
	if wait <= 0 {
		return false
	}
	now := max(time.Since(f.start), 1)
	if r.softDeadline == 0 {
		r.softDeadline = now + wait
		if asked := r.Owner.Asked(); !asked.IsZero() { // the callers have waited for the previous round
			r.softDeadline = max(asked.Sub(f.start)+wait, 1)
		}
	}
	return now < r.softDeadline
}

// act performs the action of decide, one case for each, for a round with this finding. state is the
// state of the key. err is the reason why the entry is unreadable, or why Redis could not be asked.
func (f *Fetcher) act(r *Round, found finding, read readState, state *lease.State, err error) {
	switch decide(found, read) {
	case doServe:
		f.putEntryInMemory(r, &state.Entry)
		r.step = ended
		f.countHit(r)
	case doServeStale:
		f.serveStale(r)
		if state != nil {
			f.countHit(r)
		}
	case doServeMemory:
		f.serveMemory(r, err)
	case doWaitForFresh:
		r.forFresh, r.step = true, toWait
	case doFetchRest:
		r.beginning, r.step = state.Raw, toFetch
	case doConfirmGeneration: // another process knows of an InvalidateAll that this process has not received
		r.outdated = true
		f.prepareLookup(r)
	case doReplace:
		f.countReplaced(found, err)
		// Take replaces these bytes only if they are unchanged
		f.attempt(r).State = lease.State{Kind: lease.Unknown, Raw: state.Raw}
		r.step = toLease
	case doTakeLease:
		if r.attempt != nil { // a new attempt holds nothing
			r.attempt.State = *state // the key holds nothing, so Take replaces no bytes
		}
		r.step = toLease
	case doLoad:
		r.endWait(nil)
		r.step = toLoad
		if read.Background {
			f.countRefresh(r)
		}
	case doLoadOnHold:
		r.notCached, r.withoutLease, r.step = true, true, toLoad
	case doLoadUnstorable:
		r.unstorable, r.notCached, r.withoutLease, r.step = state.Reason, true, true, toLoad
	case doLoadWithoutLease: // the keyed mutex allows one such load of the key at a time
		r.withoutLease, r.step = true, toLoad
	case doWaitForLoad:
		r.step = toWait
		r.waitFor(state, time.Since(f.start))
	case doLeaveToOthers:
		r.step, r.refreshedElsewhere = ended, found == foundOtherLease
	case doFail:
		f.Counters.FailedByMark.Add(1)
		r.Err, r.step = f.Source.Failures.Err(r.text), ended
	case doFailRedis:
		r.Err, r.step = fault.OfRedis(err), ended
	}
}

// serveMemory ends a round that could not ask Redis, because of err, with what memory holds.
func (f *Fetcher) serveMemory(r *Round, err error) {
	if r.mode != Fresh && f.fillFromMemory(r) {
		r.Unvalidated = true
		f.serveStale(r)
	} else {
		r.Err, r.step = fault.OfRedis(err), ended
	}
}

// withoutRedis continues a round that could not ask Redis.
func (f *Fetcher) withoutRedis(r *Round, err error) {
	f.Counters.RedisDown.Add(1)
	found := foundNoRedis
	if errors.Is(err, conn.ErrWrongClient) {
		found = foundWrongClient
	}
	f.act(r, found, f.readState(r, found), nil, err)
}

// countReplaced counts an entry that is ignored and loaded again.
func (f *Fetcher) countReplaced(found finding, unread error) {
	if found != foundUnreadable {
		f.Counters.Outdated.Add(1)
		return
	}
	f.Counters.Undecodable.Add(1)
	f.cache.Warn("an entry in Redis is unreadable, and is replaced", f.Name, unread)
}
