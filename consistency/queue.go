package consistency

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside"
)

// Item is an invalidation that is still to be done.
type Item struct {
	// ID names it in its queue. Put makes one where there is none.
	ID string

	// Claim names the claim by which the item was given out, so that Done and Later can tell
	// whether the item has been given to somebody else since. The queue sets Claim; of an item that
	// was not claimed it is "".
	Claim string

	// Key is what is to be invalidated.
	Key cacheaside.Key

	// After is when it is due, from the moment of Put or Later.
	After time.Duration

	// Again, if not 0, makes the item be done once more, so long after the first time: the delayed
	// double delete.
	Again time.Duration

	// Reload makes the item be done by a reload (Cache.RefreshKeys), not by a delete; a key that
	// cannot be reloaded is invalidated.
	Reload bool

	// Admit says that a filter of the key's loader may have to be told of the key, by a process
	// that has that loader. A Relay without that loader leaves the item to others. Without Admit
	// any Relay does what it can.
	Admit bool

	// Attempts is how often it has failed.
	Attempts int

	// Age is how long it has been in the queue, as Claim has found it.
	Age time.Duration
}

// Queue keeps invalidations that are still to be done. It is safe for concurrent use, also by
// several processes where it is not in memory. No item that was Put is lost before it is Done.
// Package internal/test/queuetest is its contract as tests.
//
// A queue that can tell when there is something to do may have the method Wait(ctx
// context.Context), which returns when an item may be due, or ctx ends. A Relay then waits, and
// does not poll.
type Queue interface {
	// Put adds items, but for those that are there already. If Put returns an error, some items may
	// have been added: repeat it with the same IDs.
	Put(ctx context.Context, items ...Item) error

	// Claim returns at most max items that are due, the longest due first, and gives them to nobody
	// else for life; then they are due again. None: nil.
	Claim(ctx context.Context, max int, life time.Duration) ([]Item, error)

	// Done removes items. Items that were claimed, and have been claimed by somebody else since,
	// stay. Items that are not there any more do no harm.
	Done(ctx context.Context, items ...Item) error

	// Later puts items back, with the After, Again and Attempts that they have now, and ends their
	// claims. Items that were claimed, and have been claimed by somebody else since, stay as they
	// are. Items that are not there any more do not come back.
	Later(ctx context.Context, items ...Item) error

	// Depth tells what is in it.
	Depth(ctx context.Context) (Depth, error)
}

// Depth is what is in a queue.
type Depth struct {
	Items  int           // due or not
	Due    int           // of them, those that could be claimed now
	Oldest time.Duration // the age of the oldest

	// Others is how many items of other namespaces of the table have been due for over a minute, so
	// that nobody seems to claim them: 1,001 stands for more. Only an SQLOutbox has such.
	Others int
}
