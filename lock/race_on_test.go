//go:build race

package lock_test

// slowdown is what bounds of time are multiplied by: the race detector makes everything slower, and tests of other packages run beside.
const slowdown = 10
