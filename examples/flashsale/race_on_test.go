//go:build race

package main

// The race detector slows down the processes, not the waiting.
const raceEnabled = true
