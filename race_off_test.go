//go:build !race

package cacheaside

const (
	raceEnabled = false
	slack       = 1
)
