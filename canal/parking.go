package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/parking"
)

// A Parking stores changes that could not be processed. It can also implement ParkingChecker.
type Parking interface {
	// Park stores p durably, and returns nil once p survives a crash of the machine. While Park
	// returns errors, the Consumer processes nothing else and calls Park again without limit. So
	// Park must accept every Parked in the end, even a large or unusual one. The JSON of a Parked
	// is never longer than parking.MaxSize. Park may be called more than once with the same
	// Parked.
	Park(ctx context.Context, p parking.Parked) error
}

// A ParkingChecker is a Parking that can find out in advance whether Park would fail, such as
// *parking.File and *parking.Table.
type ParkingChecker interface {
	// Check returns an error if changes cannot be parked. The Consumer calls it when it becomes
	// active, and raises an alert if it returns an error.
	Check(ctx context.Context) error
}

var (
	_ ParkingChecker = (*parking.File)(nil)
	_ ParkingChecker = (*parking.Table)(nil)
)
