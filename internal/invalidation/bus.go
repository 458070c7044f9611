// Package invalidation keeps the memory tiers of a fleet's processes true: it announces what is
// invalidated to all of them, and tells each of them when it may have missed something.
//
// It takes no words of Redis' for granted: messages may be lost without a connection breaking (a
// half-open connection, a cluster's bus, a failover), and connections may be made anew without
// anybody noticing. So announcements are numbered where the keys are, and each process asks for the
// last number at a fixed pace; only what has been checked so is trusted, and only for a time (see
// track). A process that merely writes announces, and neither asks nor listens.
package invalidation

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Bus announces and hears invalidations. It is safe for concurrent use.
type Bus struct {
	trouble func(what string, err error) // of what goes wrong; nil: nobody

	conn   *conn.Conn
	prefix string
	topic  string              // the Redis channel that all messages are published to
	keys   [conn.Ranges]string // where the numbers and generations of each range are kept
	bound  time.Duration
	lag    time.Duration // keys that are deleted are on hold for so long; 0: they are not
	memory Memory
	start  time.Time // of the clock on which generations are confirmed
	origin atomic.Uint64

	tracks  [conn.Ranges]*track
	pollers [conn.Ranges]*poller
	loaders loaders
	counts  counts

	questions atomic.Pointer[func(Question)] // the function that is given them

	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex // starting and closing
	polls   atomic.Bool
	listens atomic.Bool
	closed  bool
	running sync.WaitGroup
	hearing subscription
}

// New makes a bus on c for all caches of this prefix. memory is kept true within bound; nil if
// this process has none. It does no I/O until it is used.
func New(c *conn.Conn, prefix string, bound time.Duration, memory Memory) *Bus {
	ch := &Bus{conn: c, prefix: prefix, topic: Topic(prefix, c.DB()), bound: bound, memory: memory, start: time.Now()}
	ch.ctx, ch.cancel = context.WithCancel(context.Background())
	ch.Disown()
	for r := range c.InUse() {
		ch.keys[r] = Numbers(prefix, r)
		ch.tracks[r] = &track{rng: r, bound: bound, memory: memory}
		ch.pollers[r] = newPoller(ch, r)
	}
	return ch
}

// OnTrouble makes the bus call tell with what goes wrong in hearing what others announce:
// quickly, for locks are held. It is called before anything is read, if at all.
func (c *Bus) OnTrouble(tell func(what string, err error)) {
	c.trouble = tell
	for r := range c.conn.InUse() {
		c.tracks[r].tell = tell
	}
}

func (c *Bus) told(what string, err error) {
	if c.trouble != nil {
		c.trouble(what, err)
	}
}

// Poll begins to ask for numbers and generations, if that has not begun.
func (c *Bus) Poll() {
	if c.polls.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.polls.Swap(true) {
		return
	}
	for r := range c.conn.InUse() {
		c.running.Go(c.pollers[r].run)
	}
}

// Listen begins to listen, too, if that has not begun, and there is a memory tier that needs it.
func (c *Bus) Listen() {
	if c.listens.Load() {
		return
	}
	c.Poll()
	if c.memory == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.listens.Swap(true) {
		return
	}
	c.running.Go(c.listen)
}

// Disown makes the process take its own announcements that are still under way for another's: one
// of them may come after it was given up.
func (c *Bus) Disown() {
	c.origin.Store(rand.Uint64())
}

// Close ends the subscription and the polls, and returns when their goroutines have ended: when a
// command that is under way has timed out, at the latest. The memory is not trusted any more.
func (c *Bus) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}
