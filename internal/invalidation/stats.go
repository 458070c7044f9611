package invalidation

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

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
func (c *Bus) Stats() Stats {
	s := Stats{
		Ranges: c.conn.InUse(), Subscribes: c.counts.sessions.Load(), Announced: c.counts.announced.Load(),
		Malformed: c.counts.malformed.Load(), Disconnects: c.counts.disconnects.Load(), FailedPolls: c.counts.failedPolls.Load(),
		Questions: c.counts.questions.Load(), Unanswered: c.counts.unanswered.Load(),
	}
	for r := range s.Ranges {
		t := c.tracks[r]
		t.mu.Lock()
		s.Gaps += t.gaps
		s.Lapses += t.lapses
		s.Subscribed = s.Subscribed || t.session != 0
		if t.session != 0 && time.Now().Before(t.trusted) {
			s.Trusted++
		}
		t.mu.Unlock()
	}
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	s.Heard, s.Delay, s.MaxDelay = c.counts.messages, c.counts.delay, c.counts.most
	return s
}
