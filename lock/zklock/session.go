package zklock

import (
	"slices"
	"time"
)

// session is one session with ZooKeeper, over any number of connections. client.mu guards replies
// and locks.
type session struct {
	id      int64
	timeout time.Duration
	gone    chan struct{} // closed when the session has ended
	replies []reply
	locks   map[string]func(error) // called when the session ends, by the node of each held lock
}

// reply is a request that the server has replied to, which shows that the session lived.
type reply struct {
	sent     time.Time
	received time.Time
}

// maxTTL returns the maximum TTL of a lock: half of the session timeout. The other half covers
// reportDelay and pulseInterval.
func maxTTL(timeout time.Duration) time.Duration { return timeout / 2 }

// reportDelay returns the maximum delay until the leader, who expires sessions, knows that a
// server has received a request of the session. Servers report their sessions when the leader
// asks, each half tick, and a tick is at most half of the session timeout.
func reportDelay(timeout time.Duration) time.Duration { return timeout / 4 }

// pulseInterval returns the interval between the requests of client.pulse.
func pulseInterval(timeout time.Duration) time.Duration { return timeout / 8 }

// end ends the session and its locks. The caller holds client.mu.
func (s *session) end(reason error) {
	if s.ended() {
		return
	}
	close(s.gone)
	for _, lost := range s.locks {
		lost(reason)
	}
}

// ended reports whether the session has ended.
func (s *session) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// start records that the session was opened, or resumed on a new connection. Both involve the
// leader. Earlier replies do not count, because another server may not have reported them.
func (s *session) start(sent time.Time) { s.replies = []reply{{sent: sent}} }

// record records a reply.
func (s *session) record(sent, received time.Time) {
	if last := s.replies[len(s.replies)-1]; sent.Sub(last.sent) < s.timeout/50 {
		return // the last one is recent enough
	}
	old := func(h reply) bool { return received.Sub(h.sent) > s.timeout }
	if n := len(s.replies) - 1; n > 0 && old(s.replies[0]) {
		s.replies = slices.DeleteFunc(s.replies, old)
	}
	s.replies = append(s.replies, reply{sent, received})
}

// livesUntil returns until when the session lives at least, given that the leader has carried out
// a request that was sent at the given time. The leader knew by then of all requests with replies
// at least one reportDelay earlier, because a server's messages to the leader keep their order.
func (s *session) livesUntil(sent time.Time) time.Time {
	var last time.Time
	for _, h := range s.replies {
		if !h.received.Add(reportDelay(s.timeout)).After(sent) {
			last = h.sent
		}
	}
	return last.Add(s.timeout)
}
