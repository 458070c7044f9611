//go:build race

package main

// The race detector makes the embedded database some ten times slower.
const replayed = 6_000
