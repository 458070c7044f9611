//go:build !race

package lock_test

const slowdown = 1
