package sqloutbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
)

const (
	// listenInterval is the maximum time between two looks of a listening Relay at the first due
	// time. So it knows of a row that is due later than this after its commit before the row is
	// due, without a notification. The rows of the level Outbox are such rows, see grace.
	listenInterval = 2 * time.Second

	notifyEvery   = 50 * time.Millisecond // the minimum time between two notifications of one outbox
	notifyTimeout = 5 * time.Second
)

// The payloads of notifications.
const (
	notifyItems = "items" // items were committed that are due soon
	notifyProbe = "probe" // from a listener that checks its connection
)

// A notifier sends the notifications of an outbox, on a goroutine that ends when there are none
// left. It joins those that are requested in quick succession. The statement is a transaction of
// its own. PostgreSQL takes a lock of the whole server at the COMMIT of each transaction that
// notifies, so a NOTIFY in the transactions of writers would execute them one after another.
type notifier struct {
	mu      sync.Mutex
	running bool          // its goroutine runs
	pending bool          // a call was requested that has not begun
	last    chan struct{} // closed when the last requested call has returned; nil: none was requested
	sent    time.Time     // when the last call began
}

// request has send called soon. A call that has already begun does not count.
func (n *notifier) request(send func(context.Context) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.pending {
		n.pending, n.last = true, make(chan struct{})
	}
	if !n.running {
		n.running = true
		go n.run(send)
	}
}

func (n *notifier) run(send func(context.Context) error) {
	for more := true; more; {
		time.Sleep(time.Until(n.sent.Add(notifyEvery)))
		n.mu.Lock()
		done := n.last
		n.pending, n.sent = false, time.Now()
		n.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		_ = send(ctx) // without a notification, relays find the items within listenInterval
		cancel()
		n.mu.Lock()
		close(done)
		more = n.pending
		n.running = more
		n.mu.Unlock()
	}
}

// wait returns when the notifications that were requested before it was called are sent. It does
// not wait for later ones, which other Writers of the outbox may request all the time.
func (n *notifier) wait() {
	n.mu.Lock()
	last := n.last
	n.mu.Unlock()
	if last != nil {
		<-last
	}
}

// Committed implements consistency.QueueHooks. It notifies listening relays of all processes,
// unless they find the items in time without it.
func (o *Outbox) Committed(items ...consistency.Item) {
	soon := func(i consistency.Item) bool { return i.After < listenInterval }
	if o.listen != nil && slices.ContainsFunc(items, soon) {
		o.notifier.request(func(ctx context.Context) error { return o.notify(ctx, notifyItems) })
	}
}

// Flush implements consistency.QueueHooks. It returns when the notifications of earlier calls of
// Committed are sent.
func (o *Outbox) Flush() { o.notifier.wait() }

// notify sends a notification, in a transaction of its own.
func (o *Outbox) notify(ctx context.Context, payload string) error {
	_, err := o.db.ExecContext(ctx, fmt.Sprintf("NOTIFY %s, '%s'", o.channel(), payload))
	return err
}

// channel returns the channel of the namespace in the table, which is an identifier.
func (o *Outbox) channel() string {
	sum := sha256.Sum256([]byte(o.text.table + " " + o.namespace()))
	return "cacheaside_outbox_" + hex.EncodeToString(sum[:8])
}
