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
func (f *Fetcher) Peek(ctx context.Context, r *Round) (ok bool, err error) {
	if f.begin(r); r.bypass || f.cache.Store == nil {
		return false, nil
	}
	for _, err := range f.confirmGenerations(ctx, atStep(Single(r), toConfirm), true) {
		if err != nil {
			return false, fault.OfRedis(err)
		}
	}
	f.cache.Store.First(ctx, &f.sizes, []string{r.name}, func(_ int, state *lease.State, failed error) {
		if failed == nil {
			failed = f.fetchWhole(ctx, r, state)
		}
		switch {
		case failed != nil && ctx.Err() != nil:
			err = ctx.Err()
		case failed != nil:
			f.count(failed)
			err = fault.OfRedis(failed)
		default:
			switch found, _ := f.classify(r, state, time.Now()); found {
			case foundFresh, foundStale, foundFailing, foundTooOld:
				ok = true
			}
		}
	})
	return ok, err
}

// Copy looks what Redis holds of a round's key that would be served; then the answer is undecided,
// and the copy is in Value and Null.
func (f *Fetcher) Copy(ctx context.Context, r *Round, undecided measure.Verdict) (stamp measure.Stamp, v measure.Verdict) {
	r.name, r.nameHashed = f.Keys.Name(r.text)
	generation := f.Generations.Of(uint8(f.cache.Conn.Range(r.name)))
	if generation == nil {
		f.cache.Bus.Poll() // for the next time
		return stamp, measure.Unknown
	}
	v = measure.Unknown
	f.cache.Store.Read(ctx, &f.sizes, []string{r.name}, func(_ int, state *lease.State, err error) {
		if err == nil {
			err = f.fetchWhole(ctx, r, state)
		}
		e := &state.Entry
		switch {
		case err != nil:
		case state.Kind != lease.Stored || e.Generation < generation.Number || f.classifyAge(e, time.Now()) == foundTooOld:
			v = measure.None
		case e.Generation > generation.Number, e.Expiry.UnixMilli() == 0: // an InvalidateAll that was not heard of yet; or it was Expired, and may differ
		default:
			if f.decode(r, e) != nil {
				v = measure.None // it counts as a miss
				return
			}
			stamp, v = measure.Stamp(e.Stamp), undecided
		}
	})
	return stamp, v
}

// Entry is what would be stored of a value that was loaded in this generation, and for how long.
func (f *Fetcher) Entry(text string, generation *memory.Generation, value any) (e lease.Entry, life time.Duration, err error) {
	_, hashed := f.Keys.Name(text)
	return f.entry(text, hashed, generation, value, source.Row{})
}
