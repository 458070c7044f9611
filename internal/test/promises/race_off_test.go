//go:build !race

package promises

const (
	raceEnabled = false
	slack       = 1
)
