package zklock

import (
	"slices"
	"time"
)

// session is one session with ZooKeeper, over any number of connections. client.mu guards heard and
// locks.
type session struct {
	id      int64
	timeout time.Duration
	gone    chan struct{} // closed when it is over
	heard   []heard
	locks   map[string]func(error) // what to call when it ends, by the node of each lock that is held
}

// heard is a request that the server has answered: it knew then that the session lived.
type heard struct {
	sent     time.Time
	answered time.Time
}

// life is how long after a proof of a session's life a lock is held: half of the time-out of the
// session, for what delay and pulse take.
func life(timeout time.Duration) time.Duration { return timeout / 2 }

// delay is how long a server may take until the leader, who ends sessions, knows which of them it
// has heard of. The server tells the leader when the leader asks: each half of a tick, and a tick
// is at most half of the time-out.
func delay(timeout time.Duration) time.Duration { return timeout / 4 }

// pulse is how often a request is sent for the sake of the session.
func pulse(timeout time.Duration) time.Duration { return timeout / 8 }

// end ends the session, and with it its locks. The caller holds client.mu.
func (s *session) end(why error) {
	if s.ended() {
		return
	}
	close(s.gone)
	for _, lost := range s.locks {
		lost(why)
	}
}

// ended reports whether the session is over.
func (s *session) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// begin notes that the session was opened, or taken up again by a new connection, for which the
// leader itself was asked. Another server may have kept to itself what it has heard before.
func (s *session) begin(sent time.Time) { s.heard = []heard{{sent: sent}} }

// hear notes an answer.
func (s *session) hear(sent, answered time.Time) {
	if last := s.heard[len(s.heard)-1]; sent.Sub(last.sent) < s.timeout/50 {
		return // there are enough of them
	}
	old := func(h heard) bool { return answered.Sub(h.sent) > s.timeout }
	if n := len(s.heard) - 1; n > 0 && old(s.heard[0]) {
		s.heard = slices.DeleteFunc(s.heard, old)
	}
	s.heard = append(s.heard, heard{sent, answered})
}

// lives tells until when the session lives, as a request proves that was sent then and that the
// leader has carried out: the leader had been told by then of all that was answered one delay
// before, for a server's messages to it keep their order.
func (s *session) lives(sent time.Time) time.Time {
	var last time.Time
	for _, h := range s.heard {
		if !h.answered.Add(delay(s.timeout)).After(sent) {
			last = h.sent
		}
	}
	return last.Add(s.timeout)
}
