//go:build race

package promises

// raceEnabled reports whether the race detector is on. slack is the factor by which it may slow
// down timed operations.
const (
	raceEnabled = true
	slack       = 5
)
