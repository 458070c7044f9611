package bloom

import (
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// A new filter is compared with the present one before it replaces it. The source may have read an
// empty table, or only part of one. The filter would then refuse the keys of existing rows. A
// source that reads another table, or that formats the keys differently, is not detected here, but
// by the audits of loaders (see Redis.Hidden).

const (
	minKeyShare   = 0.9  // minimum share of the present keys that a new filter must have
	maxFill       = 0.99 // share of set bits above which the number of keys cannot be estimated
	estimateSlack = 3    // an estimate of a small filter may be wrong by this number of keys
)

// errEmpty means that the source has no keys, and that there is no filter to compare with.
var errEmpty = fmt.Errorf("%w: no keys; if the table is still empty, see RebuildOptions.AllowFewer", ErrFewer)

// checkKeyCount returns ErrFewer if a new filter with this shape and number of set bits has too few
// keys. It compares them with the keys of the present filter, if there is one, minus the deleted
// rows. The numbers of keys are estimates, so a difference of a few keys is ignored. If nearly all
// bits of either filter are set, no comparison is possible, and the new filter is accepted.
func checkKeyCount(present State, s bitmap.Shape, set uint64) error {
	if !present.Built && set == 0 {
		return errEmpty
	}
	if !present.Built || present.Fill() > maxFill || float64(set) > maxFill*float64(s.Total()) {
		return nil
	}
	keys := s.Estimate(set)
	want := minKeyShare*(float64(present.Keys)-float64(present.Deleted)) - estimateSlack
	if float64(keys) >= want {
		return nil
	}
	return fmt.Errorf("%w: about %d; the present one holds about %d, %d of them reported as deleted; "+
		"if the new number is right, see RebuildOptions.AllowFewer",
		ErrFewer, keys, present.Keys, present.Deleted)
}

// countRejection counts a filter that was not put in place of another one.
func (c *counts) countRejection(err error) {
	if errors.Is(err, ErrFewer) && !errors.Is(err, errEmpty) {
		c.rejected.Add(1)
	}
}
