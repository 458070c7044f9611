//go:build race

package keys

// underRace: the race detector counts what it allocates itself.
const underRace = true
