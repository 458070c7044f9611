//go:build !linux

package bloom

import "time"

// clock is the same for all processes of this machine, as long as nobody sets it.
func clock() int64 { return time.Now().UnixNano() }
