// Package check has the checks that the options of several packages need.
package check

import (
	"fmt"
	"time"
)

// Range returns an error that names the field, unless d is from lo to hi.
func Range(field string, d, lo, hi time.Duration) error {
	if d < lo || d > hi {
		return fmt.Errorf("%s %v: from %v to %v", field, d, lo, hi)
	}
	return nil
}
