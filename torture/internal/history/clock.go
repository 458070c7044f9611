// Package history records the operations of the processes of a torture run, so that a checker can
// combine them afterwards.
package history

import "golang.org/x/sys/unix"

// Now returns the machine's monotonic clock, in nanoseconds since its start. It is the same in all
// processes and is never set.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // impossible: Go uses this clock too
	}
	return t.Nano()
}
