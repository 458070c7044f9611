package fetch

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// Peek looks what Redis holds of a round's key, and loads nothing: ok tells whether there is
// anything, which is in Value and Null then.
func (l *Fetcher) Peek(ctx context.Context, r *Round) (ok bool, err error) {
	if l.begin(r); r.bypass || l.cache.Store == nil {
		return false, nil
	}
	for _, err := range l.learn(ctx, at(Of(r), toLearn), true) {
		if err != nil {
			return false, fault.OfRedis(err)
		}
	}
	l.cache.Store.First(ctx, &l.sizes, []string{r.name}, func(_ int, state *lease.State, failed error) {
		if failed == nil {
			failed = l.whole(ctx, r, state)
		}
		switch {
		case failed != nil && ctx.Err() != nil:
			err = ctx.Err()
		case failed != nil:
			l.count(failed)
			err = fault.OfRedis(failed)
		default:
			switch what, _ := l.classify(r, state, time.Now()); what {
			case seenFresh, seenStale, seenFailing, seenOutlived:
				ok = true
			}
		}
	})
	return ok, err
}

// Copy looks what Redis holds of a round's key that would be served; then the answer is undecided,
// and the copy is in Value and Null.
func (l *Fetcher) Copy(ctx context.Context, r *Round, undecided measure.Verdict) (stamp measure.Stamp, v measure.Verdict) {
	r.name, r.hashed = l.Keys.Name(r.text)
	generation := l.Generations.Of(uint8(l.cache.Conn.Range(r.name)))
	if generation == nil {
		l.cache.Bus.Poll() // for the next time
		return stamp, measure.Unknown
	}
	v = measure.Unknown
	l.cache.Store.Read(ctx, &l.sizes, []string{r.name}, func(_ int, state *lease.State, err error) {
		if err == nil {
			err = l.whole(ctx, r, state)
		}
		e := &state.Entry
		switch {
		case err != nil:
		case state.Kind != lease.Stored || e.Generation < generation.Number || l.age(e, time.Now()) == seenOutlived:
			v = measure.None
		case e.Generation > generation.Number, e.Expiry.UnixMilli() == 0: // an InvalidateAll that was not heard of yet; or it was Expired, and may differ
		default:
			if l.decode(r, e) != nil {
				v = measure.None // it counts as a miss
				return
			}
			stamp, v = measure.Stamp(e.Stamp), undecided
		}
	})
	return stamp, v
}

// Entry is what would be stored of a value that was loaded in this generation, and for how long.
func (l *Fetcher) Entry(text string, generation *memory.Generation, value any) (e lease.Entry, life time.Duration, err error) {
	_, hashed := l.Keys.Name(text)
	return l.entry(text, hashed, generation, value, source.Row{})
}
