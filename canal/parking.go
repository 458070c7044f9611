package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/parking"
)

// Parking keeps changes that could not be done. If it has a method Check(context.Context) error,
// the Consumer calls Check when it begins, and alerts its error.
type Parking interface {
	// Park returns nil when the Parked is kept so that it survives a crash of the machine. An error
	// stops everything: Park is tried again, for ever. So Park must not refuse a Parked for ever,
	// however large or odd; the JSON of a Parked is never longer than parking.MaxSize. The same
	// Parked may be given more than once.
	Park(ctx context.Context, p parking.Parked) error
}
