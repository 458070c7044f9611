//go:build !race

package invalidation

const underRace = false
