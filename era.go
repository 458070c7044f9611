package cacheaside

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/local"
)

// An era is the time between two InvalidateAlls, in one range of keys. Entries carry the generation of the era in which their loads began.

// raised begins a new era in a range of keys: the loader is of another generation there.
func (l *Loader[K, V]) raised(place int, generation uint64) {
	l.eras[place].Store(&local.Era{Generation: generation, Since: time.Now()})
}

// forgetAll ends what memory has of the loader, where Redis could not be told that all of it is
// invalidated.
func (l *Loader[K, V]) forgetAll() {
	if l.memory == nil {
		return
	}
	for place := range l.eras {
		if era := l.eras[place].Load(); era == nil { // what was loaded since the start, and no generation is known of
			l.memory.Clear(place)
		} else {
			again := *era
			l.eras[place].CompareAndSwap(era, &again) // else another has come
		}
	}
}

// again has a round look at Redis for the first time, or once more from the start.
func (l *Loader[K, V]) again(s *state[V]) {
	now, known := l.cache.channel.ConfirmedAt(s.place) // first: what is confirmed now may be a later era than was taken before
	s.read = now
	l.takeGeneration(s)
	s.step = toLook
	if s.era == nil || s.behind || !known {
		s.step = toLearn
	}
}

// takeGeneration is done before a round's first look at Redis, and again when it starts again: an entry loaded by it, and what is remembered of it, are of
// no later time than that.
func (l *Loader[K, V]) takeGeneration(s *state[V]) {
	s.era = l.eras.Of(s.place)
	if l.memory != nil {
		s.generation = l.memory.Generation(s.place, s.stable)
	}
}

// learn asks Redis of which generation the loader's entries are, where that is not known, or not known to be still so.
func (b *batch[K, V]) learn() {
	b.unasked(toLearn)
	rounds := at(b.open, toLearn)
	if len(rounds) == 0 {
		return
	}
	errs := b.l.learn(b.ctx, rounds, b.refresh)
	if b.ctx.Err() != nil {
		return
	}
	for i, r := range rounds {
		switch s := &r.Result; {
		case errs[i] != nil && b.refresh:
			r.Err, s.step = redisError(errs[i]), over
		case errs[i] != nil:
			b.l.out(r, errs[i])
		}
	}
}

// learn has rounds that are at that step go on to look, or answers why they cannot.
func (l *Loader[K, V]) learn(ctx context.Context, rounds []*round[K, V], patient bool) []error {
	var asked [conn.Ranges]bool
	for _, r := range rounds {
		asked[r.Result.place] = true
	}
	var errs [conn.Ranges]error
	var all sync.WaitGroup
	for place := range uint8(conn.Ranges) {
		if asked[place] {
			all.Go(func() { errs[place] = l.confirm(ctx, place, patient) })
		}
	}
	all.Wait()
	out := make([]error, len(rounds))
	for i, r := range rounds {
		s := &r.Result
		if out[i] = errs[s.place]; out[i] != nil {
			l.count(out[i])
			continue
		}
		l.takeGeneration(s)
		s.step = toLook
	}
	return out
}
