//go:build race

package memory

// underRace: the race detector makes sync.Pool lose what it keeps, and counts that as allocations.
const underRace = true
