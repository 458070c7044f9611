package rows

import (
	"context"
	"slices"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/source"
)

type awaitFunc = func(ctx context.Context, rounds []*round) (over func(), refused []error)

// directGroup returns a group whose rounds read the database, with up to chunk keys in a call.
func (c *Core) directGroup(chunk int, await awaitFunc) *Group {
	return flight.New(flight.Hooks[string, fetch.Round]{
		Run:   func(ctx context.Context, f *flight.Flight[string, fetch.Round]) { c.readDirect(ctx, f, chunk) },
		Await: await, StillValid: never, Caught: c.cache.Caught,
	})
}

// readDirect runs one flight of reads of the database. It also reads keys that have no text.
func (c *Core) readDirect(ctx context.Context, f *flight.Flight[string, fetch.Round], chunk int) {
	chunks := slices.Collect(slices.Chunk(f.Rounds, chunk))
	fetch.InParallel(chunks, c.calls(), func(rounds []*round, waiting func()) {
		for i, row := range c.LoadAlone(ctx, fetched(rounds), source.Call{Waiting: waiting}) {
			result := &rounds[i].Result
			result.Value, result.Null, rounds[i].Err = row.Value, row.Null, row.Err
			if row.Err != nil && ctx.Err() != nil {
				rounds[i].Err = c.Fetch.Stopped(ctx)
			}
		}
		f.Complete(rounds)
	})
}

// compareLater starts a comparison of a row that was read for a shadow with the cached copies, if
// the row's key is in the sample.
func (c *Core) compareLater(row *fetch.Round, mode fetch.Mode) {
	if c.Shadow == nil || c.Bypassed() {
		return
	}
	text, err := c.typed.Text(row.Key)
	if err != nil {
		c.Shadow.Undecided.Add(1)
		return
	}
	if !c.Shadow.Chosen(c.names.Hash(text)) {
		return
	}
	if !c.Shadow.Begin() {
		c.Shadow.Undecided.Add(1)
		return
	}
	go func() {
		defer c.Shadow.End()
		c.compareShadow(row.Key, text, copyOfRound(row), mode)
	}()
}

// compareShadow compares the cached copies with a row that was read just before.
func (c *Core) compareShadow(key any, text string, row audit.Copy, mode fetch.Mode) {
	ctx, cancel := context.WithTimeout(c.life, 2*c.options.Fetch.LoadTimeout+audit.ConfirmAfter)
	defer cancel()
	first, hit := c.shadowRead(ctx, key, text, mode)
	switch {
	case !first.There:
		c.Shadow.Undecided.Add(1)
		return
	case !hit:
		c.Shadow.Misses.Add(1)
		return
	}
	again := func() audit.Copy {
		second, hit := c.shadowRead(ctx, key, text, mode)
		second.There = second.There && hit // a value that was loaded just now is no copy
		return second
	}
	c.Shadow.Count(c.auditKey(key, text, again, c.Shadow.MayLoad).CompareWith(ctx, first, row))
}

// shadowRead reads a key from the caches. hit reports whether they had the value. If not, the
// value is loaded, if the shadow may load.
func (c *Core) shadowRead(ctx context.Context, key any, text string, mode fetch.Mode) (found audit.Copy, hit bool) {
	if mode != fetch.Fresh {
		if copied, ok := c.typed.tierCopy(key, noTier); ok {
			return copied, true
		}
	}
	if !c.Shadow.MayLoad() {
		return found, false
	}
	c.Counters.Misses.Add(1)
	got, err := c.Flights.forMode(mode).Do(ctx, text, func() *round { return c.roundOf(key, text) })
	if err != nil {
		return found, false
	}
	if hit = got.Hit || got.FilterRefused(); hit {
		c.Shadow.NotLoaded()
	}
	return copyOfRound(got), hit
}
