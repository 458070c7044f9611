//go:build race

package cacheaside

// raceEnabled tells whether the race detector is on; slack is how much longer it may make what is
// timed.
const (
	raceEnabled = true
	slack       = 5
)
