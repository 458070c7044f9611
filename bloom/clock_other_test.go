//go:build !linux

package bloom

import "time"

// clock is the same for all processes of this machine, unless the clock is set.
func clock() int64 { return time.Now().UnixNano() }
