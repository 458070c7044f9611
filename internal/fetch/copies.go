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

// Peek looks up a round's key in Redis, without loading the row. ok reports whether Redis holds a
// copy, which is then in Value and Null.
func (f *Fetcher) Peek(ctx context.Context, r *Round) (ok bool, err error) {
	if f.begin(r); r.bypass || f.cache.Store == nil {
		return false, nil
	}
	if err := f.cache.Conn.Down(int(r.slotRange)); err != nil {
		f.count(err)
		return false, fault.OfRedis(err)
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

// Copy looks up the entry of a round's key in Redis. If a read would be served that entry, Copy
// returns undecided, and the copy is in Value and Null.
func (f *Fetcher) Copy(
	ctx context.Context, r *Round, undecided measure.Verdict,
) (stamp measure.Stamp, v measure.Verdict) {
	r.name, r.nameHashed = f.Keys.Name(r.text)
	r.slotRange = uint8(f.cache.Conn.Range(r.name))
	generation := f.Generations.Range(r.slotRange)
	if generation == nil {
		f.cache.Bus.Poll() // for the next call
		return stamp, measure.Unknown
	}
	v = measure.Unknown
	if f.cache.Conn.Down(int(r.slotRange)) != nil {
		return stamp, v
	}
	f.cache.Store.Read(ctx, &f.sizes, []string{r.name}, func(_ int, state *lease.State, err error) {
		if err == nil {
			err = f.fetchWhole(ctx, r, state)
		}
		e := &state.Entry
		switch {
		case err != nil:
		case state.Kind != lease.Stored || e.Generation < generation.Number || f.isOutdated(r.slotRange, e) ||
			f.classifyAge(e, f.now(r.slotRange)) == foundTooOld:
			v = measure.None
		case e.Generation > generation.Number, e.Expiry.UnixMilli() == 0, f.isExpired(r.slotRange, e):
			// The verdict stays Unknown. Either this process has not received an InvalidateAll yet,
			// or Expire or ExpireGroup has ended the freshness of the entry, which may therefore
			// differ from the row.
		default:
			if f.decode(r, e) != nil {
				v = measure.None // reads treat it as a miss
				return
			}
			stamp, v = measure.Stamp(e.Stamp), undecided
		}
	})
	return stamp, v
}

// Entry returns the entry that a read would store for a value that was loaded in this generation.
// known is Groups.Last before the value was read. life is the entry's time to live in Redis.
func (f *Fetcher) Entry(
	key any, text string, generation *memory.Generation, known uint64, value any,
) (e lease.Entry, life time.Duration, err error) {
	r := &Round{Key: key, identity: identity{text: text}, snapshot: snapshot{generation: generation, known: known}}
	r.name, r.nameHashed = f.Keys.Name(text)
	r.slotRange = uint8(f.cache.Conn.Range(r.name))
	row := source.Row{Value: value}
	if err := f.setGroups(r, row); err != nil {
		return e, 0, err
	}
	return f.entry(r, row)
}
