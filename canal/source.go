package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Source tells of changes. It is used by one Consumer at a time.
type Source interface {
	// Run delivers batches, in their order, until ctx ends or it can't go on, and returns why. It
	// may be run again. When it can begin it says so by a first Batch, which may be empty: with its
	// Position, if it has such. A batch should not have more than some hundred changes, of rows
	// that are large fewer. While nothing changes it delivers an empty Batch with its Position and
	// Time each second or so, or Health finds that it is behind. Once it has returned it delivers
	// nothing. An error that Is ErrPositionLost says that what follows Need.From is not to be had
	// any more; one that Is ErrSetup, that it will not work before somebody has changed something.
	// After any other, the Consumer runs it again.
	Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error
}
