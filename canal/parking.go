package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/parking"
)

// A Parking stores changes that could not be processed. If it also has a method
// Check(context.Context) error, the Consumer calls Check when it becomes active, and raises an
// alert if Check returns an error.
type Parking interface {
	// Park stores p durably, and returns nil once p survives a crash of the machine. While Park
	// returns errors, the Consumer processes nothing else and calls Park again without limit. So
	// Park must accept every Parked in the end, even a large or unusual one. The JSON of a Parked
	// is never longer than parking.MaxSize. Park may be called more than once with the same
	// Parked.
	Park(ctx context.Context, p parking.Parked) error
}
