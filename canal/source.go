package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Source tells of changes. It is used by one Consumer at a time.
type Source interface {
	// Run delivers batches, in their order, until ctx ends or it can't go on, and returns why. Run
	// may be called again. When Run can begin it says so by a first Batch, which may be empty: with
	// its Position, if the Source has positions. A batch should not have more than some hundred
	// changes, of rows that are large fewer. While nothing changes Run delivers an empty Batch with
	// its Position and Time each second or so, or Health finds that the Source is behind. Once Run
	// has returned it delivers nothing. An error that Is ErrPositionLost says that the changes
	// after Need.From are not to be had any more. One that Is ErrSetup says that Run will not work
	// before somebody has changed something. After any other error, the Consumer calls Run again.
	Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error
}
