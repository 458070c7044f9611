package cacheaside

import (
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/source"
)

// What a round does while Redis is out of reach. Once that has been noticed (see conn.Down) nobody waits for it: reads are not sent, nor is what reads would leave
// there. Invalidate and Refresh always try: who calls them wants to know.

// unasked ends the asking of rounds that are at this step, where Redis is out of reach.
func (l *Loader[K, V]) unasked(rounds []*round[K, V], s step) {
	if l.cache.conn == nil {
		return
	}
	for _, r := range rounds {
		if r.Result.step != s {
			continue
		}
		if err := l.cache.conn.Down(int(r.Result.place)); err != nil {
			l.out(r, err)
		}
	}
}

func (b *batch[K, V]) unasked(s step) {
	if !b.refresh {
		b.l.unasked(b.open, s)
		b.land(b.open)
	}
}

// out decides what follows where Redis could not be asked: LoaderOptions.RedisDown.
func (l *Loader[K, V]) out(r *round[K, V], err error) {
	s := &r.Result
	l.counters.redisDown.Add(1)
	policy := l.options.RedisDown
	switch {
	case errors.Is(err, conn.ErrWrongClient): // it will not come back
		r.Err, s.step = redisError(err), over
	case s.patience > 0 && s.refusals == 0: // Redis was lost while a fresh value was waited for: the stale one was there when the callers asked
		l.counters.stale.Add(1)
		s.step = over
	case policy == LoadWhenDown: // once for the process
		s.alone, s.step = true, toLoad
	case policy == StaleWhenDown && l.fromMemory(r):
		l.counters.stale.Add(1)
		s.step = over
	default:
		r.Err, s.step = redisError(err), over
	}
}

// loadAll loads the rows of rounds. Where Redis could not be asked, those who have gathered meanwhile are in, who would wait for it as long again: what is loaded is from after they asked, and they are
// given nothing that Redis has said before. Not for a key on hold, or with Bypass, where nobody has waited; nor without any Redis, where a round knows only of holds from before it began (see onHold).
func (b *batch[K, V]) loadAll(rounds []*round[K, V], waiting func()) []source.Row {
	takeIn := func() {
		if b.flight == nil || b.l.cache.store == nil {
			return
		}
		for _, r := range rounds {
			if s := &r.Result; s.alone && !s.held && !s.bypass {
				b.flight.TakeIn(r)
			}
		}
	}
	keys := make([]K, len(rounds))
	for i, r := range rounds {
		keys[i] = r.Key
	}
	how := source.Call{Begins: takeIn, Waiting: waiting, Background: b.renewal}
	rows := b.l.source.LoadEntered(b.l.withPrimary(b.ctx, rounds), textsOf(rounds), b.l.query(keys), how)
	note(b.l.returned, keys, rows)
	return rows
}

// fromMemory answers a round by what memory holds, trusted or not, within its hard life.
func (l *Loader[K, V]) fromMemory(r *round[K, V]) bool {
	if r.Result.fresh {
		return false
	}
	item, _, ok := l.past(r.Key)
	if ok {
		r.Result.value, r.Result.null, r.Result.unvalidated = item.Value, item.Null, true
	}
	return ok
}

// firstFresh and readFresh are first and read for those whom memory may not answer.
func (l *Loader[K, V]) firstFresh(ctx context.Context, rounds []*round[K, V]) (done, rest []*round[K, V]) {
	for _, r := range rounds {
		r.Result.fresh = true
	}
	return l.first(ctx, rounds)
}

func (l *Loader[K, V]) readFresh(ctx context.Context, f *flight.Flight[K, state[V]]) {
	for _, r := range f.Rounds {
		r.Result.fresh = true
	}
	l.read(ctx, f)
}

// confirm asks for the generation of a range, and waits for it as for a read; for longer if patient.
func (l *Loader[K, V]) confirm(ctx context.Context, place uint8, patient bool) error {
	if patient {
		return l.cache.channel.Confirm(ctx, place)
	}
	began := time.Now()
	bound, cancel := context.WithTimeout(ctx, l.cache.options.ReadTimeout)
	defer cancel()
	err := l.cache.channel.Confirm(bound, place)
	err = l.cache.conn.Explain(ctx, err, "a poll", l.cache.channel.Key(place), began)
	if err != nil && bound.Err() != nil { // else it is the poll's error, which is noted
		l.cache.conn.Failed(ctx, l.cache.channel.Key(place), err)
	}
	return err
}

// asks tells whether what a round leaves in Redis is to be sent there. If it is not, that is counted: it was to be stored, or given up.
func (b *batch[K, V]) asks(r *round[K, V]) bool {
	err := b.l.cache.conn.Down(int(r.Result.place))
	if b.refresh || err == nil {
		return true
	}
	b.l.countWrite(err)
	return false
}

// put stores what rounds have loaded, but where Redis is out of reach: then nobody waits to learn that it could not be stored.
func (b *batch[K, V]) put(rounds []*round[K, V], all []*lease.Filling) {
	sent := make([]*lease.Filling, 0, len(all))
	for i, f := range all {
		err := b.l.cache.conn.Down(int(rounds[i].Result.place))
		if err != nil && !b.refresh {
			f.Err = err // settleFill counts it
			continue
		}
		sent = append(sent, f)
	}
	if len(sent) > 0 {
		b.l.cache.store.Fill(context.WithoutCancel(b.ctx), sent)
	}
}
