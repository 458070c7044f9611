package canal

import (
	"context"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A Source delivers changes of rows. One Consumer at a time uses it.
type Source interface {
	// Run delivers batches in order until ctx ends or it cannot continue, and returns the reason.
	// After Run has returned, it delivers nothing more. Run may be called again.
	//
	// When Run is ready it delivers a first Batch, which may be empty. If the Source has
	// positions, this Batch has one. A Batch should have at most a few hundred changes, and fewer
	// if the rows are large. While nothing changes, Run delivers an empty Batch with its Position
	// and Time about every second. Otherwise Health reports that the Consumer is behind.
	//
	// An error that Is ErrPositionLost reports that the changes after Need.From are no longer
	// available. An error that Is ErrSetup reports that Run cannot succeed until a setting is
	// changed. Its text has all statements that do that, in order, because it becomes the text of
	// an alert. An error that Is ErrSourceClosed ends the Consumer. After any other error the
	// Consumer calls Run again, and after an ErrSetup too if it has worked before.
	Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error
}

// A MessageSource is a Source that delivers the messages of Need.Messages, as that of package
// pglogical does. BindOutbox needs one.
type MessageSource interface {
	Source

	// DeliversMessages does nothing. It marks the Source: with another one, the items of an outbox
	// would be lost.
	DeliversMessages()
}

// A Retainer is a Source whose server keeps its log until the Consumer has saved its position, as
// a replication slot of PostgreSQL does. The Consumer calls its methods from several goroutines.
type Retainer interface {
	Source

	// Saved is called with each position that was saved in the Checkpoint. Without a Checkpoint it
	// is called with each position up to which all changes are processed. The server may discard
	// the log before this position: the Consumer never asks for it again. Saved must not block.
	Saved(p event.Position)

	// Retained returns the number of bytes of log that the server keeps for this Source, or -1 if
	// that is unknown. It must not block. Stats.Retained reports it.
	Retained() int64
}
