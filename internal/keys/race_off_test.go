//go:build !race

package keys

const underRace = false
