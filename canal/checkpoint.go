package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Checkpoint keeps the position up to which everything is done. Do not keep it in the Redis whose
// keys are invalidated: that Redis may lose both together.
type Checkpoint interface {
	// Load returns what was saved last; none if nothing was.
	Load(ctx context.Context) (event.Position, error)

	// Save keeps p, so that it survives a crash of the machine. token is that of the lock under
	// which p was read: of two Consumers that save at a time, the one with the smaller token must
	// not overwrite the position of the other. Without a lock token is 0.
	Save(ctx context.Context, p event.Position, token int64) error
}
