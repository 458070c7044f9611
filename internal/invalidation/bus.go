// Package invalidation keeps the memory tiers of a fleet consistent. It announces invalidations
// to all processes, and detects when a process may have missed one.
//
// It does not rely on the delivery of messages. Messages may be lost while the connection stands
// (a half-open connection, a cluster's bus, a failover), and a client may reconnect unnoticed. So
// Redis numbers the announcements next to the keys, and each process polls the last number at a
// fixed interval. Memory is trusted only after such a check, and only for a limited time (see
// track). A process that only writes announces, but neither polls nor subscribes.
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

// A Bus announces and receives invalidations. It is safe for concurrent use.
type Bus struct {
	onTrouble func(message string, err error) // reports failures; may be nil

	conn   *conn.Conn
	prefix string
	topic  string              // the Redis channel of all messages
	keys   [conn.Ranges]string // names of the hashes with the numbers and generations
	bound  time.Duration
	lag    time.Duration // duration of the hold after a delete; 0: none
	memory Memory
	start  time.Time // origin of the clock on which generations are confirmed
	origin atomic.Uint64

	tracks  [conn.Ranges]*track
	clocks  [conn.Ranges]atomic.Int64 // Redis' time at start, Unix microseconds; 0: unknown
	ends    ends
	deletes deletes

	pollers [conn.Ranges]*poller
	loaders loaders
	counts  counts

	questions atomic.Pointer[func(Question)] // handles questions; nil: none does

	ctx          context.Context
	cancel       context.CancelFunc
	mu           sync.Mutex // guards starting and closing
	polling      atomic.Bool
	listening    atomic.Bool
	closed       bool
	running      sync.WaitGroup
	subscription atomic.Pointer[subscription] // the current or last subscription
}

// subscription is the subscription of a session.
type subscription struct {
	session uint64
	end     func()
}

// endIf ends the subscription if it belongs to the session, so that a new one is made.
func (s *subscription) endIf(session uint64) {
	if s.session == session {
		s.end()
	}
}

// New returns a bus on c for all caches of this prefix. It keeps memory consistent within bound;
// memory may be nil. The bus does no I/O until it is used.
func New(c *conn.Conn, prefix string, bound time.Duration, memory Memory) *Bus {
	b := &Bus{conn: c, prefix: prefix, topic: Topic(prefix, c.DB()), bound: bound, memory: memory, start: time.Now()}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.Disown()
	for r := range c.InUse() {
		b.keys[r] = Numbers(prefix, r)
		b.pollers[r] = newPoller(b, r)
		b.tracks[r] = &track{rng: r, bound: bound, memory: memory, onGap: b.pollers[r].unconfirm,
			lostAfter: max(bound/(2*pollsInBound), minLostAfter)}
	}
	return b
}

// OnTrouble sets the function that reports failures in receiving announcements. report must be
// quick, because locks are held. OnTrouble must be called before the bus is used.
func (b *Bus) OnTrouble(report func(message string, err error)) {
	b.onTrouble = report
	for r := range b.conn.InUse() {
		b.tracks[r].onTrouble = report
	}
}

func (b *Bus) report(message string, err error) {
	if b.onTrouble != nil {
		b.onTrouble(message, err)
	}
}

// Poll starts polling numbers and generations, unless it has started.
func (b *Bus) Poll() {
	if b.polling.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.polling.Swap(true) {
		return
	}
	for r := range b.conn.InUse() {
		b.running.Go(b.pollers[r].run)
	}
}

// Listen starts polling, and subscribes if there is a memory tier, unless this has started.
func (b *Bus) Listen() {
	if b.listening.Load() {
		return
	}
	b.Poll()
	if b.memory == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.listening.Swap(true) {
		return
	}
	b.running.Go(b.listen)
}

// Disown changes the origin of the process, so that it treats its own earlier announcements as
// those of another process. Redis may still execute one that the process has abandoned.
func (b *Bus) Disown() {
	b.origin.Store(rand.Uint64())
}

// Close ends the subscription and the polls, and waits for their goroutines, at most until the
// current command has timed out. Memory is not trusted afterwards.
func (b *Bus) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.running.Wait()
}

// Stats are counters that the root package documents.
type Stats struct {
	Ranges, Trusted         int
	Subscribed              bool
	Subscribes, Disconnects int64
	Gaps, Lapses            int64
	Received, Announced     int64
	Malformed               int64
	Questions, Unanswered   int64
	FailedPolls             int64
	Delay, MaxDelay         time.Duration
}

type counts struct {
	sessions, disconnects, announced, malformed, failedPolls, questions, unanswered atomic.Int64

	mu              sync.Mutex
	messages        int64
	delay, maxDelay time.Duration
}

func (c *counts) session() uint64 { return uint64(c.sessions.Add(1)) }

func (c *counts) pollFailed(err error) {
	if !errors.Is(err, context.Canceled) {
		c.failedPolls.Add(1)
	}
}

// setClock records Redis' time in microseconds, which was read between the sending of a poll and
// its reply.
func (b *Bus) setClock(rng int, sent, received time.Time, micros uint64) {
	b.clocks[rng].Store(int64(micros) - sent.Add(received.Sub(sent)/2).Sub(b.start).Microseconds())
}

// Clock returns the time of the server that has the keys of a range, as the last poll found it. A
// change of this process's clock has no effect. Before the first poll, Clock returns the time of
// this process.
func (b *Bus) Clock(rng uint8) time.Time {
	if began := b.clocks[rng].Load(); began != 0 {
		return time.UnixMicro(began).Add(b.Now())
	}
	return time.Now()
}

// countReceived counts a message and the delay since its number, which is the time of the
// announcement.
func (b *Bus) countReceived(rng int, num uint64) {
	c := &b.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages++
	if b.clocks[rng].Load() == 0 {
		return
	}
	delay := max(b.Clock(uint8(rng)).Sub(time.UnixMicro(int64(num))), 0)
	c.maxDelay = max(c.maxDelay, delay)
	if c.delay == 0 {
		c.delay = delay
	}
	c.delay += (delay - c.delay) / 16
}

// Stats returns the counters.
func (b *Bus) Stats() Stats {
	s := Stats{
		Ranges: b.conn.InUse(), Subscribes: b.counts.sessions.Load(), Announced: b.counts.announced.Load(),
		Malformed: b.counts.malformed.Load(), Disconnects: b.counts.disconnects.Load(),
		FailedPolls: b.counts.failedPolls.Load(),
		Questions:   b.counts.questions.Load(), Unanswered: b.counts.unanswered.Load(),
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
	s.Received, s.Delay, s.MaxDelay = b.counts.messages, b.counts.delay, b.counts.maxDelay
	return s
}
