// Package history is what the processes of a torture run write down of their operations, so that
// what they saw can be put side by side afterwards.
package history

import "golang.org/x/sys/unix"

// Now is the machine's monotonic clock, in nanoseconds since it was started: the same in all its
// processes, and never set.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock that Go itself runs on
	}
	return t.Nano()
}
