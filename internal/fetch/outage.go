package fetch

import (
	"errors"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fault"
)

// Rounds while Redis is out of reach. Once that has been noticed (see conn.Down) nobody waits for
// Redis: reads are not sent, nor is what reads would leave there. Invalidate and Refresh always
// try: their callers want to know.

// skipRedis ends the asking of rounds that are at this step, where Redis is out of reach.
func (l *Fetcher) skipRedis(rounds []*Round, s step) {
	if l.cache.Conn == nil {
		return
	}
	for _, r := range rounds {
		if r.step != s {
			continue
		}
		if err := l.cache.Conn.Down(int(r.slotRange)); err != nil {
			l.withoutRedis(r, err)
		}
	}
}

func (b *batch) skipRedis(s step) {
	if !b.refresh {
		b.l.skipRedis(b.open, s)
		b.complete(b.open)
	}
}

// withoutRedis does what follows where Redis could not be asked.
func (l *Fetcher) withoutRedis(r *Round, err error) {
	l.Counters.RedisDown.Add(1)
	what := seenNoAnswer
	if errors.Is(err, conn.ErrWrongClient) {
		what = seenWrongClient
	}
	next := decide(what, l.standing(r, what))
	if next == giveMemory {
		next = failRedis
		if l.fromMemory(r) {
			next = giveStale
		}
	}
	switch next {
	case giveStale:
		l.giveStale(r)
	case loadWithoutLease: // once for the process
		r.withoutLease, r.step = true, toLoad
	default:
		r.Err, r.step = fault.OfRedis(err), over
	}
}

// fromMemory answers a round by what memory holds, trusted or not, within its hard life.
func (l *Fetcher) fromMemory(r *Round) bool {
	if r.how == Fresh {
		return false
	}
	item, _, ok := l.Past(r)
	if ok {
		r.Value, r.Null, r.Unvalidated = item.Value, item.Null, true
	}
	return ok
}
