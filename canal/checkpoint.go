package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Checkpoint keeps the position up to which everything is done. It must not be kept in the Redis
// whose keys are invalidated: that may lose both together.
type Checkpoint interface {
	// Load returns what was saved last; none if nothing was.
	Load(ctx context.Context) (event.Position, error)

	// Save keeps p, so that it survives a crash of the machine. token is that of the lock under
	// which it was read: of two that save at a time, the one with the smaller token must not
	// overwrite that of the other. Without a lock it is 0.
	Save(ctx context.Context, p event.Position, token int64) error
}
