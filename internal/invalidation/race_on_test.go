//go:build race

package invalidation

// underRace: the race detector makes sync.Pool lose what it keeps, and counts that as allocations.
const underRace = true
