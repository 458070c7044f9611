package fetch

import "testing"

// TestDecide reads like the documentation of the read path: what a look has shown, where the read
// stands, and what it does next.
func TestDecide(t *testing.T) {
	var (
		read       = standing{}
		again      = standing{AskedAgain: true}
		patient    = standing{WaitsForFresh: true}
		hasStale   = standing{HasStale: true, Down: FailWhenDown}
		loads      = standing{Down: LoadWhenDown}
		memory     = standing{Down: StaleWhenDown}
		fails      = standing{Down: FailWhenDown}
		refresh    = standing{Refresh: true}
		background = standing{Refresh: true, Background: true}
	)
	for _, row := range []struct {
		what seen
		at   standing
		want action
	}{
		// A read finds a value.
		{seenFresh, read, giveValue},
		{seenStale, read, giveStale},
		{seenStale, patient, waitForFresh},
		{seenFailing, patient, giveStale}, // what failed a moment ago is not waited for
		{seenFailing, read, giveStale},

		// It finds a value that does not count, or cannot be read.
		{seenOutlived, read, replace},
		{seenUnreadable, read, replace},
		{seenOlder, read, replace},
		{seenOlder, again, replace},
		{seenNewer, read, askGeneration},
		{seenNewer, again, replace}, // once is enough
		{seenBeginning, read, fetchRest},

		// It finds none.
		{seenNothing, read, takeLease},
		{seenOwnLease, read, load},
		{seenLease, read, waitForLoad},
		{seenLease, patient, waitForLoad},
		{seenHold, read, loadOnHold},
		{seenFailure, read, fail},

		// Redis is out of reach.
		{seenNoAnswer, loads, loadWithoutLease},
		{seenNoAnswer, memory, giveMemory},
		{seenNoAnswer, fails, failRedis},
		{seenNoAnswer, hasStale, giveStale},
		{seenWrongClient, loads, failRedis},
		{seenWrongClient, hasStale, failRedis},

		// A Refresh has claimed the key, whatever it holds.
		{seenOwnLease, refresh, load},
		{seenLease, refresh, waitForLoad},
		{seenNothing, refresh, waitForLoad}, // it has changed meanwhile: the key is claimed again
		{seenHold, refresh, loadOnHold},
		{seenNoAnswer, refresh, failRedis},

		// So has a background refresh, for which nobody waits.
		{seenOwnLease, background, load},
		{seenLease, background, leaveToOthers},
		{seenNothing, background, leaveToOthers},
		{seenHold, background, leaveToOthers},
		{seenNoAnswer, background, failRedis},
	} {
		if got := decide(row.what, row.at); got != row.want {
			t.Errorf("decide(%d, %+v) = %d, want %d", row.what, row.at, got, row.want)
		}
	}
}
