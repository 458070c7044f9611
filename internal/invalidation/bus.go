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
	"errors"
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
	hearing atomic.Pointer[subscription] // the last one
}

// subscription is the one by which the process hears, in a session.
type subscription struct {
	session uint64
	end     func()
}

// endIf ends the subscription if it is that of the session, so that another takes its place.
func (s *subscription) endIf(session uint64) {
	if s.session == session {
		s.end()
	}
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
func (b *Bus) OnTrouble(tell func(what string, err error)) {
	b.trouble = tell
	for r := range b.conn.InUse() {
		b.tracks[r].tell = tell
	}
}

func (b *Bus) told(what string, err error) {
	if b.trouble != nil {
		b.trouble(what, err)
	}
}

// Poll begins to ask for numbers and generations, if that has not begun.
func (b *Bus) Poll() {
	if b.polls.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.polls.Swap(true) {
		return
	}
	for r := range b.conn.InUse() {
		b.running.Go(b.pollers[r].run)
	}
}

// Listen begins to listen, too, if that has not begun, and there is a memory tier that needs it.
func (b *Bus) Listen() {
	if b.listens.Load() {
		return
	}
	b.Poll()
	if b.memory == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.listens.Swap(true) {
		return
	}
	b.running.Go(b.listen)
}

// Disown makes the process take its own announcements that are still under way for another's: one
// of them may come after it was given up.
func (b *Bus) Disown() {
	b.origin.Store(rand.Uint64())
}

// Close ends the subscription and the polls, and returns when their goroutines have ended: when a
// command that is under way has timed out, at the latest. The memory is not trusted any more.
func (b *Bus) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.running.Wait()
}

// Stats are what the root package tells its users of; see there.
type Stats struct {
	Ranges, Trusted         int
	Subscribed              bool
	Subscribes, Disconnects int64
	Gaps, Lapses            int64
	Heard, Announced        int64
	Malformed               int64
	Questions, Unanswered   int64
	FailedPolls             int64
	Delay, MaxDelay         time.Duration
}

type counts struct {
	sessions, disconnects, announced, malformed, failedPolls, questions, unanswered atomic.Int64

	mu          sync.Mutex
	messages    int64
	delay, most time.Duration
	clocks      [conn.Ranges]struct {
		at  time.Time // here
		now uint64    // there, in microseconds
	}
}

func (c *counts) session() uint64 { return uint64(c.sessions.Add(1)) }

func (c *counts) failed(err error) {
	if !errors.Is(err, context.Canceled) {
		c.failedPolls.Add(1)
	}
}

// clock notes what Redis' clock shows, somewhere between the sending of a poll and its answer.
func (c *counts) clock(rng int, sent, answered time.Time, now uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clocks[rng].at, c.clocks[rng].now = sent.Add(answered.Sub(sent)/2), now
}

// heard takes a message into account, whose number is when it was announced.
func (c *counts) heard(rng int, num uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages++
	at := c.clocks[rng]
	if at.now == 0 {
		return
	}
	delay := max(time.Since(at.at)-time.Duration(int64(num)-int64(at.now))*time.Microsecond, 0)
	c.most = max(c.most, delay)
	if c.delay == 0 {
		c.delay = delay
	}
	c.delay += (delay - c.delay) / 16
}

// Stats answers what has been counted.
func (b *Bus) Stats() Stats {
	s := Stats{
		Ranges: b.conn.InUse(), Subscribes: b.counts.sessions.Load(), Announced: b.counts.announced.Load(),
		Malformed: b.counts.malformed.Load(), Disconnects: b.counts.disconnects.Load(), FailedPolls: b.counts.failedPolls.Load(),
		Questions: b.counts.questions.Load(), Unanswered: b.counts.unanswered.Load(),
	}
	for r := range s.Ranges {
		t := b.tracks[r]
		t.mu.Lock()
		s.Gaps += t.gaps
		s.Lapses += t.lapses
		s.Subscribed = s.Subscribed || t.session != 0
		if t.session != 0 && time.Now().Before(t.trusted) {
			s.Trusted++
		}
		t.mu.Unlock()
	}
	b.counts.mu.Lock()
	defer b.counts.mu.Unlock()
	s.Heard, s.Delay, s.MaxDelay = b.counts.messages, b.counts.delay, b.counts.most
	return s
}
