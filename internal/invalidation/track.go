package invalidation

import (
	"slices"
	"sync"
	"time"
)

// Memory is the memory tier that a bus keeps consistent. Its methods must be quick, and must not
// take locks that are held when the bus is called.
type Memory interface {
	Forget(stable uint64) // outdates the keys with this stable hash
	Clear(rng int)        // outdates all keys of a range as a precaution: no invalidation is known
	// outdates all keys of a range, because some have been invalidated and it is unknown which
	Void(rng int)
	Trust(rng int, until time.Time) // values read from now on may be served until then; the zero time ends trust
}

// A Listener is a Memory that also receives the bodies that other processes announce. Received is
// called sequentially, before the announcement counts as received. It must be quick, and must not
// retain body.
type Listener interface {
	Memory
	Received(body []byte)
}

// track is the state of this process for the announcements of one range.
//
// Redis numbers the announcements. Each message contains its own number and the previous one, and
// a poll returns the last number. So the process knows whether it had received everything when it
// sent the poll. If so, it may trust its memory until a fixed time after it sent the poll. This
// is the bound, regardless of lost messages, connections and servers. Messages only make
// invalidations fast.
//
// A track does no I/O. The time is passed in.
type track struct {
	rng    int
	bound  time.Duration // duration of trust after a poll that found nothing missing
	memory Memory        // nil: this process has none

	mu      sync.Mutex
	session uint64 // the current subscription; 0: none
	synced  bool   // a poll that was sent in this session has been replied to
	gap     bool   // messages before lastReceived are missing, and Memory.Void was not called since
	// the last announcement; unless gap, all earlier ones were received, or Memory.Void was called
	// after them
	lastReceived uint64
	duringPoll   []uint64 // see cover; at most maxDuringPoll numbers since the last poll was sent
	recent       recent   // see cover
	// the number from the last poll that outdated memory: messages up to it may still arrive, and
	// change nothing
	base         uint64
	missing      uint64 // a number from a poll whose announcement has not been received; 0: none
	missingSince time.Time
	lostAfter    time.Duration // after missingSince, a poll decides that the announcement is lost
	trusted      time.Time     // the end of trust

	gaps, lapses int64
	onTrouble    func(message string, err error) // see Bus.OnTrouble; may be nil
	// called before a message is covered although earlier ones are missing, which may have
	// invalidated whole loaders; may be nil
	onGap func()
}

// position is the position of a message in the chain of announcements.
type position struct{ prev, num uint64 }

// pendingPoll is a poll that has been sent.
type pendingPoll struct {
	sent         time.Time // of sending
	session      uint64    // at that time, as is lastReceived
	lastReceived uint64
}

// maxDuringPoll is the maximum number of numbers that are kept for a poll in progress. A poll that
// returns a later received number proves nothing: the next poll decides.
const maxDuringPoll = 4096

// subscribed begins a session when Redis has confirmed the subscription. Messages that were
// published before will not be received.
func (t *track) subscribed(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reset()
	t.session = session
}

// unsubscribed ends the session.
func (t *track) unsubscribed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reset()
}

// reset ends the session. It does not change gap: Memory.Void still has to be called for the
// missing messages.
func (t *track) reset() {
	t.session, t.synced, t.missing = 0, false, 0
	if t.memory != nil {
		t.trusted = time.Time{}
		t.memory.Trust(t.rng, time.Time{})
	}
}

// distrust calls Memory.Void for the range, and ends trust until the next poll. It is called for a
// message that may concern the range in an unknown way. Until the reply to that poll, further such
// messages change nothing, so any number of them outdates memory once per poll.
func (t *track) distrust() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session == 0 || !t.synced {
		return
	}
	t.synced, t.missing = false, 0
	t.trusted = time.Time{}
	t.memory.Trust(t.rng, time.Time{})
	t.memory.Void(t.rng)
}

// received records the position of a message, after its keys have been outdated. If an earlier
// message is missing, it calls clear if the session is synced. Otherwise it sets gap, and the first
// poll calls Memory.Void. Everything announced before a message was deleted in Redis before the
// message was sent, so values that are read from now on are newer.
func (t *track) received(session uint64, p position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	arrived := p.num == t.missing
	switch {
	case session != t.session:
		return
	case p.prev == t.lastReceived:
	case p.num <= t.base: // from before the session was known to have begun, or its number was issued again
		return
	default:
		arrived = p.num >= t.missing
		if t.onGap != nil {
			t.onGap()
		}
		t.cover(p.prev)
		if t.synced {
			t.clear()
		} else {
			t.gap = true
		}
	}
	t.lastReceived = p.num
	t.cover(p.num)
	if arrived && t.missing != 0 {
		t.missing = 0
		t.trust(t.missingSince)
	}
}

// cover records the number of an announcement. If the poll in progress returns it, nothing is
// missing: this announcement and all earlier ones were received, or Memory.Void was called after
// them.
func (t *track) cover(num uint64) {
	if len(t.duringPoll) < maxDuringPoll {
		t.duringPoll = append(t.duringPoll, num)
	}
	t.recent.add(num)
}

// clear counts a gap and calls Memory.Void, because announcements were missed.
func (t *track) clear() {
	t.gaps++
	if t.onTrouble != nil {
		t.onTrouble("invalidations were missed: memory was cleared", nil)
	}
	t.memory.Void(t.rng)
}

// beginPoll begins a poll.
func (t *track) beginPoll(sent time.Time) pendingPoll {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.duringPoll = t.duringPoll[:0]
	return pendingPoll{sent: sent, session: t.session, lastReceived: t.lastReceived}
}

// endPoll ends a poll that returned the number of the last announcement. It reports whether the
// subscription seems to be dead: the announcement that an earlier poll reported has still not been
// received after lostAfter.
//
// The poll is complete if its number was lastReceived when the poll was sent, or was covered since.
// A number between two covered ones proves nothing. After a failover, Redis may continue with a
// smaller number than that of a message that is still on its way.
func (t *track) endPoll(q pendingPoll, last uint64) (dead bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.memory == nil || t.session == 0 || t.session != q.session {
		return false // messages published in between are unknown
	}
	complete := last == q.lastReceived || slices.Contains(t.duringPoll, last)
	if !complete && len(t.duringPoll) == maxDuringPoll && t.duringPoll[maxDuringPoll-1] < last &&
		last <= t.lastReceived {
		return false // last may have been received, but is not in the list
	}
	first, late := !t.synced, t.missing != 0
	switch {
	case first && complete && !t.gap:
		t.memory.Clear(t.rng)
	case first:
		t.memory.Void(t.rng)
	case complete:
	case last > t.lastReceived && !late:
		t.missing, t.missingSince = last, q.sent
		return false
	case last > t.lastReceived && q.sent.Sub(t.missingSince) < t.lostAfter:
		return false // it may still be gathered: readers cause polls at any time
	default: // the number was missing at an earlier poll too, or Redis has lost it
		t.clear()
	}
	if !complete {
		t.lastReceived = last
	}
	if first || !complete {
		t.base = last
	}
	t.synced, t.gap, t.missing = true, false, 0
	t.recent.add(last)
	t.trust(q.sent)
	return late && !complete
}

// trust allows memory to be served for the bound, from the time when a poll was sent.
func (t *track) trust(sent time.Time) {
	until := sent.Add(t.bound)
	if !until.After(t.trusted) {
		return
	}
	if !t.trusted.IsZero() && sent.After(t.trusted) {
		t.lapses++
	}
	t.trusted = until
	t.memory.Trust(t.rng, until)
}
