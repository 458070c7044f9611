package consistency

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
)

// An Item is a pending invalidation.
type Item struct {
	// ID identifies the item in its queue. Put generates one if ID is empty, see NewID.
	ID string

	// New means that no queue has had an item with this ID, so that Put need not look for one.
	New bool

	// Claim identifies the claim under which Claim returned the item. Done and Later compare it to
	// detect that the item has since been claimed again. The queue sets it. It is "" for an item
	// that was not claimed.
	Claim string

	// Key is the key to invalidate.
	Key cacheaside.Key

	// After is the delay until the item is due, counted from Put or Later.
	After time.Duration

	// Again, if not 0, requests a second invalidation this long after the first one: the delayed
	// double delete.
	Again time.Duration

	// Reload requests a reload (Cache.RefreshKeys) instead of an invalidation. A key that cannot be
	// reloaded is invalidated.
	Reload bool

	// Inserting means that the key may have to be added to the filter of its loader, which only a
	// process with that loader can do. A Relay without the loader leaves the item to other relays.
	// Any Relay can handle an item without Inserting.
	Inserting bool

	// Attempts is the number of failed attempts.
	Attempts int

	// Age is the time that the item has been in the queue. Claim sets it.
	Age time.Duration
}

// A Queue stores pending invalidations. It is safe for concurrent use, and by several processes
// unless it is in memory. It keeps each item from Put until Done. Package queuetest tests this
// contract.
//
// A call whose ctx has already ended changes nothing and returns the error of ctx. A call without
// items does nothing. No method changes the items that the caller passes.
//
// A Queue that also implements QueueWaiter is not polled. One that implements TxQueue can be an
// outbox. Package sqloutbox implements TxQueue, QueueHooks and QueueIdentity.
type Queue interface {
	// Put adds the items that are not in the queue. If it returns an error, some of them may have
	// been added: repeat the call with the same IDs.
	Put(ctx context.Context, items ...Item) error

	// Claim returns at most max items that are due, those due longest first. No other call returns
	// them for the duration of life; after that they are due again. If none is due it returns nil.
	Claim(ctx context.Context, max int, life time.Duration) ([]Item, error)

	// Done removes items, even after the end of their claims. A claimed item that has since been
	// claimed again stays. Items that are not in the queue are ignored.
	Done(ctx context.Context, items ...Item) error

	// Later returns items to the queue with their current After, Again and Attempts, and ends their
	// claims. A claimed item that has since been claimed again is left unchanged. Items that are
	// not in the queue are ignored.
	Later(ctx context.Context, items ...Item) error

	// Depth returns the number and the age of the items.
	Depth(ctx context.Context) (Depth, error)
}

// A QueueWaiter is a Queue that knows when items become due, such as a MemoryQueue. A Relay calls
// Wait instead of polling it.
type QueueWaiter interface {
	// Wait returns when an item may be due, or ctx ends.
	Wait(ctx context.Context)
}

// A QueueIdentity is a Queue that knows which items it contains, such as an sqloutbox.Outbox.
// Relays of more than five processes whose queues have the same identity call them less often, so
// that together they call them about as often as five (RelayOptions.Poll).
type QueueIdentity interface {
	// Identity returns a text that is the same for all queues with these items, and different for
	// all others: it names the server, the database, the table and the namespace. A Relay calls it
	// when Run begins, and every 10 minutes. If it returns "" or an error, the Relay calls the
	// queue as if it were alone.
	Identity(ctx context.Context) (string, error)
}

// A TxQueue is a Queue that takes part in the transactions of the database that holds the rows,
// such as an sqloutbox.Outbox or a pglogical.Outbox. See Options.Queue.
type TxQueue interface {
	Queue

	// PutIn is Put in the transaction tx. Claim returns the items after the commit, and never if
	// tx is rolled back. Update passes an *sqlx.Tx or, in PostgreSQL, a type that embeds one.
	PutIn(ctx context.Context, tx sqlx.ExecerContext, items ...Item) error
}

// QueueHooks are further methods that a Queue can have, for example because it has connections of
// its own. Writers and Relays call them. A Queue implements all or none of them.
type QueueHooks interface {
	// Bind is called by NewWriter and NewRelay, which return its error. prefix is the
	// cacheaside.Options.Prefix of their Cache. db is the database of the Writer; it is nil for a
	// Relay.
	Bind(prefix string, db *sqlx.DB) error

	// Committed is called by Update after the commit, with the items of PutIn. It must not block.
	Committed(items ...Item)

	// Flush is called at the end of Writer.Close. It returns when everything is done that earlier
	// calls of Committed have begun.
	Flush()

	// Listen is called by Relay.Run. If run is nil, the Relay polls the queue, or waits with
	// QueueWaiter. Otherwise the Relay calls run on a goroutine of its own, until Run ends, and
	// calls wait in place of polling. wait returns when an item may be due, after at least poll and
	// at most some 10 seconds, a minute if many Relays share the queue, or when its ctx ends. The
	// Relay ends that ctx when it has put items back. Then and when wait returns, it calls Claim
	// and wait again. relays returns how many Relays share the queue, 0 if that is unknown
	// (QueueIdentity). If there are many, wait should not return in all of them for the same item.
	Listen(poll time.Duration, relays func() int, log *slog.Logger) (run, wait func(ctx context.Context))

	// Maintain is called by Relays after Depth. Errors count as errors of Depth.
	Maintain(ctx context.Context, log *slog.Logger) error
}

// NewID returns a new Item.ID, of 32 hexadecimal digits. The first 48 bits are the time in
// milliseconds, so IDs of the same time are stored near each other. The others are random.
func NewID() string {
	var id [16]byte
	rand.Read(id[:])
	copy(id[:], binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli())<<16)[:6])
	return hex.EncodeToString(id[:])
}

// Depth describes the content of a queue.
type Depth struct {
	Items  int           // all items, due or not
	Due    int           // items that can be claimed now
	Oldest time.Duration // the age of the oldest item

	// Others is the number of items of other namespaces in the table that have been due for more
	// than a minute: probably no relay claims them. 1,001 means 1,001 or more. Only an
	// sqloutbox.Outbox sets it.
	Others int
}

var _ QueueWaiter = (*MemoryQueue)(nil)
