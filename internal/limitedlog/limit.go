package limitedlog

import "time"

// Limit lets an event of a kind pass at most once in Quiet, and counts the others. It has no lock:
// its callers hold one of their own.
type Limit[K comparable] struct {
	Quiet time.Duration

	seen map[K]*counted
}

type counted struct {
	at    time.Time // when it passed last
	times int64     // since then
}

// Count counts an event. It returns how often it has happened since one of its kind passed, and
// whether it may pass now: then Pass is for the caller to call.
func (l *Limit[K]) Count(kind K) (times int64, due bool) {
	c := l.seen[kind]
	if c == nil {
		c = &counted{}
		if l.seen == nil {
			l.seen = make(map[K]*counted)
		}
		l.seen[kind] = c
	}
	c.times++
	return c.times, c.at.IsZero() || time.Since(c.at) >= l.Quiet
}

// Pass begins the time in which events of a kind are only counted.
func (l *Limit[K]) Pass(kind K) { *l.seen[kind] = counted{at: time.Now()} }
