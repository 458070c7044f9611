// Package holders decides who may hold a read-write lock or a semaphore. It is used by the services
// that can compare and replace a value: tables and the memory of a process. Redis decides by a
// script of its own, with the same rules.
package holders

import (
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// Modes of a Holder.
const (
	Shared  = 's' // holds the lock with others
	Alone   = 'x' // holds the lock alone
	Waiting = 'w' // waits to hold it alone; as long as its entry lives, no holder is added
)

// A Holder is an entry of a lock. It ends at Until, unless it is extended.
type Holder struct {
	ID    string // of the request: see NewID
	Mode  byte
	Token int64
	Until int64 // time of the service in microseconds
}

// validID matches what NewID returns. Statements contain ids in quotes.
var validID = regexp.MustCompile(`^[A-Za-z0-9_.:@/=-]+$`)

// NewID returns a new id for a request: 26 letters and digits, followed by "=" and the label, if
// there is one.
func NewID(label string) string {
	if label == "" {
		return rand.Text()
	}
	return rand.Text() + "=" + label
}

// Label returns the label of an id.
func Label(id string) string {
	_, label, _ := strings.Cut(id, "=")
	return label
}

// State contains the holders of one lock.
type State []Holder

var errState = errors.New("the lock has another value: the table has another definition, or another program uses it")

// Parse returns the state that String has formatted.
func Parse(text string) (State, error) {
	var s State
	for entry := range strings.SplitSeq(text, ";") {
		if text == "" {
			break
		}
		words := strings.Split(entry, " ")
		if len(words) != 4 || len(words[0]) != 1 || !validID.MatchString(words[1]) {
			return nil, errState
		}
		token, err := strconv.ParseInt(words[2], 10, 64)
		until, err2 := strconv.ParseInt(words[3], 10, 64)
		if err != nil || err2 != nil {
			return nil, errState
		}
		s = append(s, Holder{ID: words[1], Mode: words[0][0], Token: token, Until: until})
	}
	return s, nil
}

// String returns the entries as "mode id token until", separated by ";".
func (s State) String() string {
	entries := make([]string, len(s))
	for i, h := range s {
		entries[i] = fmt.Sprintf("%c %s %d %d", h.Mode, h.ID, h.Token, h.Until)
	}
	return strings.Join(entries, ";")
}

// Live returns the entries that have not ended at the time now.
func (s State) Live(now int64) State {
	return slices.DeleteFunc(slices.Clone(s), func(h Holder) bool { return h.Until <= now })
}

// Without returns the entries with other ids, and whether there were any with this one.
func (s State) Without(id string) (State, bool) {
	others := slices.DeleteFunc(slices.Clone(s), func(h Holder) bool { return h.ID == id })
	return others, len(others) < len(s)
}

// Find returns the entry with this id that holds the lock, or nil. It points into s.
func (s State) Find(id string) *Holder {
	for i, h := range s {
		if h.ID == id && h.Mode != Waiting {
			return &s[i]
		}
	}
	return nil
}

// Take adds the request with this id to the holders at the time now, with the token. If others
// prevent that, it returns the time until the first of them ends; a request for the lock alone
// that waits is then added as Waiting. changed reports whether next differs from s.
func (s State) Take(id string, r driver.Request, now, token int64) (next State, left time.Duration, changed bool) {
	live := s.Live(now)
	next, _ = live.Without(id) // an earlier request whose reply was lost
	h := Holder{ID: id, Mode: Shared, Token: token, Until: now + r.TTL.Microseconds()}
	if r.Limit == 0 {
		h.Mode = Alone
	}
	first := next.firstEnd(r.Limit)
	switch {
	case first == 0:
		return append(next, h), 0, true
	case r.Limit > 0 || !r.Wait:
		return live, time.Duration(first-now) * time.Microsecond, false
	}
	i := slices.IndexFunc(live, func(w Holder) bool { return w.ID == id && w.Mode == Waiting })
	if i >= 0 && live[i].Until-now > r.TTL.Microseconds()*2/3 {
		return live, time.Duration(first-now) * time.Microsecond, false
	}
	h.Mode, h.Token = Waiting, 0
	return append(next, h), time.Duration(first-now) * time.Microsecond, true
}

// firstEnd returns the earliest end of the entries that prevent another holder, or 0 if there are
// none. limit is driver.Request.Limit.
func (s State) firstEnd(limit int) (first int64) {
	shared := 0
	for _, h := range s {
		if h.Mode == Shared {
			shared++
		}
	}
	for _, h := range s {
		prevents := h.Mode != Waiting
		if limit > 0 {
			prevents = h.Mode != Shared || shared >= limit
		}
		if prevents && (first == 0 || h.Until < first) {
			first = h.Until
		}
	}
	return first
}

// Inspect returns the holders at the time now.
func (s State) Inspect(now int64) (d driver.State) {
	for _, h := range s.Live(now) {
		if h.Mode != Waiting {
			d.Holders = append(d.Holders, driver.Holder{Label: Label(h.ID), Token: h.Token, Alone: h.Mode == Alone,
				Left: time.Duration(h.Until-now) * time.Microsecond})
		}
	}
	return d
}

// Break returns the entries without the holder that has this token at the time now, and whether
// there was one.
func (s State) Break(token, now int64) (State, bool) {
	for _, h := range s.Live(now) {
		if h.Token == token && h.Mode != Waiting {
			return s.Without(h.ID)
		}
	}
	return s, false
}
