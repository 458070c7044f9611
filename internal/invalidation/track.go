package invalidation

import (
	"sync"
	"time"
)

// Memory is what a bus keeps true: a process's memory tier. Its methods are quick, and take no
// locks under which a bus is called.
type Memory interface {
	Forget(stable uint64)           // what memory has of the keys with this stable hash
	Clear(rng int)                  // what memory has of all keys of a range, since some may have been invalidated
	Void(rng int)                   // likewise, since some have been, and it is not known which
	Trust(rng int, until time.Time) // what is read from now on may be served so long; the zero time: no more
}

// Listener is a Memory that is also told what others Tell; quickly, and one after the other, before
// the announcement counts as heard. It keeps nothing of what it is given.
type Listener interface {
	Memory
	Told(body []byte)
}

// track is what a process knows of the announcements of one range.
//
// Announcements are numbered by Redis, each message tells its own number and the one before, and a
// poll asks for the last one. So the process knows whether it has heard all there were when it sent
// the poll, and if so, may trust its memory until a fixed time after that sending: that is the
// bound, whatever happens to messages, connections and servers. Hearing of them at once is only the
// fast way.
//
// It does no I/O; time is passed in.
type track struct {
	rng    int
	bound  time.Duration // how long a poll that found nothing missing is good for
	memory Memory        // nil: this process has none

	mu      sync.Mutex
	session uint64 // which subscription the process hears by; 0: none
	synced  bool   // a poll that was sent in this session has been answered
	gap     bool   // a message was missing before that: memory is to be cleared by that poll
	heard   uint64 // the last announcement; all before it were heard, or memory was cleared for them
	base    uint64 // the answer to the first poll of the session: earlier messages may still be under way
	missing uint64 // the number that a poll has returned, of an announcement not heard yet; 0: none
	since   time.Time
	trusted time.Time // until then

	gaps, lapses int64
	tell         func(what string, err error) // as Bus.OnTrouble; nil: nobody is to be told
}

// link is one message's place in the chain of announcements.
type link struct{ prev, num uint64 }

// question is a poll that was sent.
type question struct {
	at      time.Time // of sending
	session uint64
	heard   uint64
}

// subscribed begins a session: Redis has confirmed the subscription. Messages published before that
// will not be heard.
func (t *track) subscribed(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave()
	t.session = session
}

// lost ends the session.
func (t *track) lost() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave()
}

func (t *track) leave() {
	t.session, t.synced, t.gap, t.missing = 0, false, false, 0
	if t.memory != nil {
		t.trusted = time.Time{}
		t.memory.Trust(t.rng, time.Time{})
	}
}

// doubt ends what memory has of the range, and its trust until a poll is answered: a message may be
// about it, and it is not known how. Messages until then change nothing any more, so that it
// costs no more than a poll now and then, however many such messages there are.
func (t *track) doubt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session == 0 || !t.synced {
		return
	}
	t.synced, t.gap, t.missing = false, false, 0
	t.trusted = time.Time{}
	t.memory.Trust(t.rng, time.Time{})
	t.memory.Void(t.rng)
}

// received takes the place of a message in the chain, after what it invalidates has been forgotten.
// Where a message before it is missing, memory is cleared. All that was announced before a message
// was deleted in Redis before it was sent, so nothing that is read from now on is from before that.
func (t *track) received(session uint64, l link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case session != t.session:
		return
	case l.prev == t.heard:
		t.heard = l.num
	case l.num <= t.base: // from before the session was known to have begun, or its number was given again
	default:
		t.heard = l.num
		if t.synced {
			t.clear()
		} else {
			t.gap = true
		}
	}
	if t.missing != 0 && l.num >= t.missing { // or behind it: then the memory was cleared
		t.missing = 0
		t.trust(t.since)
	}
}

// clear clears the memory because announcements were missed, and it is not known which: that is no
// mere doubt.
func (t *track) clear() {
	t.gaps++
	if t.tell != nil {
		t.tell("invalidations were missed: memory was cleared", nil)
	}
	t.memory.Void(t.rng)
}

// ask begins a poll.
func (t *track) ask(at time.Time) question {
	t.mu.Lock()
	defer t.mu.Unlock()
	return question{at: at, session: t.session, heard: t.heard}
}

// answered ends a poll with the number of the last announcement. It reports whether the
// subscription seems to be dead: the number that the poll before has returned was not heard until
// now.
//
// Numbers grow. So a number from q.heard, when the poll was sent, to t.heard, now, is of an
// announcement that was heard, or for which memory was cleared. A smaller one means that Redis has
// lost its numbers.
func (t *track) answered(q question, last uint64) (dead bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.memory == nil || t.session == 0 || t.session != q.session {
		return false // nothing is known of what was published between
	}
	heard := q.heard <= last && last <= t.heard
	first, late := !t.synced, t.missing != 0
	switch {
	case first && heard && !t.gap:
		t.memory.Clear(t.rng)
	case first:
		t.memory.Void(t.rng)
	case heard:
	case last > t.heard && !late:
		t.missing, t.since = last, q.at
		return false
	default: // missing for a whole period, or Redis has lost the number
		t.clear()
	}
	if !heard {
		t.heard = last
	}
	if first || !heard {
		t.base = last
	}
	t.synced, t.missing = true, 0
	t.trust(q.at)
	return late && !heard
}

// trust lets the memory be served for the bound from when a poll was sent.
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
