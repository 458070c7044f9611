package fetch

import "testing"

// TestDecide reads like the documentation of the read path: what a look has shown, where the read
// stands, and what it does next.
func TestDecide(t *testing.T) {
	var (
		read       = readState{}
		again      = readState{GenerationConfirmed: true}
		patient    = readState{WaitsForFresh: true}
		hasStale   = readState{HasStale: true, Down: FailWhenDown}
		loads      = readState{Down: LoadWhenDown}
		memory     = readState{Down: StaleWhenDown}
		fails      = readState{Down: FailWhenDown}
		refresh    = readState{Refresh: true}
		background = readState{Refresh: true, Background: true}
	)
	for _, row := range []struct {
		step  finding
		state readState
		want  action
	}{
		// A read finds a value.
		{foundFresh, read, doServe},
		{foundStale, read, doServeStale},
		{foundStale, patient, doWaitForFresh},
		{foundFailing, patient, doServeStale}, // what failed a moment ago is not waited for
		{foundFailing, read, doServeStale},

		// It finds a value that does not count, or cannot be read.
		{foundTooOld, read, doReplace},
		{foundUnreadable, read, doReplace},
		{foundOutdated, read, doReplace},
		{foundOutdated, again, doReplace},
		{foundNewGeneration, read, doConfirmGeneration},
		{foundNewGeneration, again, doReplace}, // once is enough
		{foundPartial, read, doFetchRest},

		// It finds none.
		{foundNothing, read, doTakeLease},
		{foundOwnLease, read, doLoad},
		{foundOtherLease, read, doWaitForLoad},
		{foundOtherLease, patient, doWaitForLoad},
		{foundHold, read, doLoadOnHold},
		{foundUnstorable, read, doLoadUnstorable},
		{foundFailure, read, doFail},

		// Redis is out of reach.
		{foundNoRedis, loads, doLoadWithoutLease},
		{foundNoRedis, memory, doServeMemory},
		{foundNoRedis, fails, doFailRedis},
		{foundNoRedis, hasStale, doServeStale},
		{foundWrongClient, loads, doFailRedis},
		{foundWrongClient, hasStale, doFailRedis},

		// A Refresh has claimed the key, with any contents.
		{foundOwnLease, refresh, doLoad},
		{foundOtherLease, refresh, doWaitForLoad},
		{foundNothing, refresh, doWaitForLoad}, // it has changed since: the key is claimed again
		{foundHold, refresh, doLoadOnHold},
		{foundNoRedis, refresh, doFailRedis},

		// A background refresh, which no caller waits for, has claimed it, too.
		{foundOwnLease, background, doLoad},
		{foundOtherLease, background, doLeaveToOthers},
		{foundNothing, background, doLeaveToOthers},
		{foundHold, background, doLeaveToOthers},
		{foundNoRedis, background, doFailRedis},
	} {
		if got := decide(row.step, row.state); got != row.want {
			t.Errorf("decide(%d, %+v) = %d, want %d", row.step, row.state, got, row.want)
		}
	}
}
