package bloom

import (
	"syscall"
	"unsafe"
)

// clock is CLOCK_MONOTONIC, in nanoseconds: the same for all processes of this machine.
func clock() int64 {
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		panic(errno)
	}
	return now.Nano()
}
