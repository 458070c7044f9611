//go:build !race

package bloom

const underRace = false
