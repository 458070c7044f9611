//go:build race

package main

// The race detector slows the processes down, not the waiting.
const raceEnabled = true
