//go:build !race

package local

const underRace = false
