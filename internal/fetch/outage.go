package fetch

import (
	"errors"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fault"
)

// What a round does while Redis is out of reach. Once that has been noticed (see conn.Down) nobody waits for it: reads are not sent, nor is what reads would leave
// there. Invalidate and Refresh always try: who calls them wants to know.

// unasked ends the asking of rounds that are at this step, where Redis is out of reach.
func (l *Fetcher) unasked(rounds []*Round, s step) {
	if l.cache.Conn == nil {
		return
	}
	for _, r := range rounds {
		if r.step != s {
			continue
		}
		if err := l.cache.Conn.Down(int(r.place)); err != nil {
			l.out(r, err)
		}
	}
}

func (b *batch) unasked(s step) {
	if !b.refresh {
		b.l.unasked(b.open, s)
		b.land(b.open)
	}
}

// out decides what follows where Redis could not be asked: LoaderOptions.RedisDown.
func (l *Fetcher) out(r *Round, err error) {
	s := r
	l.counters.RedisDown.Add(1)
	policy := l.options.RedisDown
	switch {
	case errors.Is(err, conn.ErrWrongClient): // it will not come back
		r.Err, s.step = fault.OfRedis(err), over
	case s.patience > 0 && s.refusals == 0: // Redis was lost while a fresh value was waited for: the stale one was there when the callers asked
		l.counters.Stale.Add(1)
		s.step = over
	case policy == LoadWhenDown: // once for the process
		s.alone, s.step = true, toLoad
	case policy == StaleWhenDown && l.fromMemory(r):
		l.counters.Stale.Add(1)
		s.step = over
	default:
		r.Err, s.step = fault.OfRedis(err), over
	}
}

// fromMemory answers a round by what memory holds, trusted or not, within its hard life.
func (l *Fetcher) fromMemory(r *Round) bool {
	if r.fresh {
		return false
	}
	item, _, ok := l.Past(r)
	if ok {
		r.Value, r.Null, r.Unvalidated = item.Value, item.Null, true
	}
	return ok
}
