//go:build race

package bloom

// underRace: what has no concurrency is tested at length without the race detector only.
const underRace = true
