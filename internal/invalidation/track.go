package invalidation

import (
	"slices"
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
	heard   uint64 // the last announcement up to which none is missing
	base    uint64 // what the first poll of the session answered: earlier messages may still be under way
	noting  bool   // a poll is under way
	noted   []link // the messages since it was sent
	missing uint64 // a poll has told of this announcement, which has not been heard; 0: none
	since   time.Time
	trusted time.Time // until then

	gaps, lapses int64
	tell         func(what string, err error) // as Bus.OnTrouble; nil: nobody is to be told
}

// link is one message's place in the chain of announcements.
type link struct{ prev, num uint64 }

// maxNoted bounds what is noted while a poll is under way; if there is more the poll counts for
// nothing.
const maxNoted = 1 << 14

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
	t.session, t.synced, t.missing, t.noted = 0, false, 0, nil
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
	t.synced, t.missing = false, 0
	t.trusted = time.Time{}
	t.memory.Trust(t.rng, time.Time{})
	t.void()
}

// received takes the place of a message in the chain, after what it invalidates has been forgotten.
func (t *track) received(session uint64, l link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session != t.session {
		return
	}
	if t.noting && len(t.noted) <= maxNoted {
		t.noted = append(t.noted, l)
	}
	if !t.synced {
		return
	}
	t.take(l)
	if t.missing != 0 && l.num >= t.missing { // or behind it: then the memory was cleared
		t.missing = 0
		t.trust(t.since)
	}
}

// take follows the chain, and clears the memory where one is missing. All that was announced before
// this message was deleted in Redis before it was sent, so nothing that is read from now on is from
// before that.
func (t *track) take(l link) {
	switch {
	case l.prev == t.heard:
		t.heard = l.num
	case l.num <= t.base: // from before the session was known to have begun, or its number was given again
	default:
		t.clear()
		t.heard = l.num
	}
}

func (t *track) clear() {
	t.gaps++
	if t.tell != nil {
		t.tell("invalidations were missed: memory was cleared", nil)
	}
	t.void()
}

// void clears the memory since something was announced, and it is not known what: that is no mere
// doubt.
func (t *track) void() {
	t.memory.Void(t.rng)
}

// ask begins a poll.
func (t *track) ask(at time.Time) question {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noting, t.noted = true, t.noted[:0]
	return question{at: at, session: t.session, heard: t.heard}
}

// failed ends a poll that was not answered.
func (t *track) failed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noting, t.noted = false, nil
}

// answered ends a poll with the number of the last announcement. It tells whether the subscription
// seems to be dead: what a poll told of has not been heard until the next one.
func (t *track) answered(q question, last uint64) (dead bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	noted := t.noted
	t.noting, t.noted = false, nil
	if t.memory == nil || t.session == 0 || t.session != q.session || len(noted) > maxNoted {
		return false // nothing is known of what was published between
	}
	isLast := func(l link) bool { return l.num == last && last > t.base }
	late := t.missing != 0 // since the poll before
	switch {
	case !t.synced:
		t.synced = true
		switch {
		case last == t.heard:
			t.memory.Clear(t.rng)
		default:
			t.void()
		}
		t.restart(last, noted)
		t.trust(q.at)
	case last == q.heard, slices.ContainsFunc(noted, isLast):
		t.missing = 0
		t.trust(q.at)
		return false
	case last > t.heard && !late:
		t.missing, t.since = last, q.at
		return false
	default: // missing for a whole period, or Redis has lost the number
		t.clear()
		t.restart(last, noted)
		t.trust(q.at)
	}
	return late
}

// restart begins to follow the chain behind last, after a clear.
func (t *track) restart(last uint64, noted []link) {
	t.heard, t.base, t.missing = last, last, 0
	for _, l := range noted {
		if l.num > last {
			t.take(l)
		}
	}
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
