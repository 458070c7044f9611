package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A Checkpoint stores the position up to which all changes are processed. Do not store it in the
// Redis whose keys are invalidated: that Redis can lose the keys and the position together.
type Checkpoint interface {
	// Load returns the position that was saved last, or "" if none was saved.
	Load(ctx context.Context) (event.Position, error)

	// Save stores p durably: it must survive a crash of the machine. token is the fencing token
	// of the lock under which p was read, or 0 if there is no lock. If two Consumers save
	// concurrently, the one with the smaller token must not overwrite the position of the other.
	Save(ctx context.Context, p event.Position, token int64) error
}
