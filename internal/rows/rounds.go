package rows

import (
	"context"
	"errors"
	"slices"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
)

// A request is the keys of one call, by their texts. places are the indexes of the keys in the
// caller's slice; nil if they are the same. create returns a new round of a key.
type request struct {
	texts  []string
	places []int
	create func(i int) *round
}

// place returns the caller's index of a key.
func (r *request) place(i int) int { return placeOf(r.places, i) }

func placeOf(places []int, i int) int {
	if places != nil {
		return places[i]
	}
	return i
}

// subset returns a request for the keys at these indexes of r.
func (r *request) subset(indexes []int) request {
	sub := request{texts: make([]string, len(indexes)), places: make([]int, len(indexes)),
		create: func(i int) *round { return r.create(indexes[i]) }}
	for i, place := range indexes {
		sub.texts[i], sub.places[i] = r.texts[place], r.place(place)
	}
	return sub
}

// read waits for a round of each key. It calls got or failed with the caller's index of the key.
// It returns the number of rounds that have tried to load.
func (r request) read(ctx context.Context, g *Group, got func(int, *fetch.Round), failed func(int, error)) (loads int) {
	if len(r.texts) == 0 {
		return 0
	}
	rounds, errs := g.DoMany(ctx, r.texts, r.create)
	for i, round := range rounds {
		err := errs[i]
		if err == nil { // the round has completed
			err = round.Err
			if round.Result.LoadTried {
				loads++
			}
		}
		if err != nil {
			failed(r.place(i), err)
		} else {
			got(r.place(i), &round.Result)
		}
	}
	return loads
}

// groupFor returns the group for a read by callers, and counts the reads. With a shadow, callers
// read the database.
func (c *Core) groupFor(mode fetch.Mode, reads int) *Group {
	if c.Shadow != nil {
		c.Shadow.Reads.Add(int64(reads))
		return c.Flights.Direct
	}
	c.Counters.Misses.Add(int64(reads))
	return c.Flights.forMode(mode)
}

// get is Reader.Get for the key of a text.
func (c *Core) get(ctx context.Context, mode fetch.Mode, text string, create func() *round) (*fetch.Round, error) {
	got, err := c.groupFor(mode, 1).Do(ctx, text, create)
	switch {
	case err == nil:
		c.compareLater(got, mode)
		return got, nil
	case errors.Is(err, fault.LoadCycle):
		return c.getInCycle(ctx, mode, text, create(), err)
	default:
		return nil, err
	}
}

// getInCycle is breakCycles for one key.
func (c *Core) getInCycle(
	ctx context.Context, mode fetch.Mode, text string, r *round, cycle error,
) (got *fetch.Round, err error) {
	a := request{texts: []string{text}, create: func(int) *round { return c.roundOf(r.Result.Key, text) }}
	c.breakCycles(ctx, mode, a, map[int]error{0: cycle}, func(_ int, r *fetch.Round) { got = r },
		func(_ int, failed error) { err = failed })
	return got, err
}

// getMany is Reader.GetMany.
func (c *Core) getMany(
	ctx context.Context, mode fetch.Mode, a request, got func(int, *fetch.Round), failed func(int, error),
) {
	cycles := make(map[int]error)
	all := a
	all.places = nil
	all.read(ctx, c.groupFor(mode, len(a.texts)), func(i int, row *fetch.Round) {
		c.compareLater(row, mode)
		got(a.place(i), row)
	}, func(i int, err error) {
		if errors.Is(err, fault.LoadCycle) {
			cycles[i] = err
		} else {
			failed(a.place(i), err)
		}
	})
	c.breakCycles(ctx, mode, a, cycles, got, failed)
}

// breakCycles handles keys whose loads wait for the load that asks for them. cycles are their
// errors, by their indexes in a. Such a load may have asked for its own key while other callers
// read that key, so it would wait forever. It gets the cached copy, as it would without other
// callers.
//
// A row of a batch may need another row of the same batch that is not cached. The other row is
// then loaded separately: again, in a call with this key alone, without a lease and without being
// stored.
//
// An error that only wraps fault.LoadCycle is from a load that this load has asked for, so
// breakCycles returns it.
func (c *Core) breakCycles(
	ctx context.Context, mode fetch.Mode, a request, cycles map[int]error, got func(int, *fetch.Round),
	failed func(int, error),
) {
	var separate []int
	for i, err := range cycles {
		if row := c.copyFor(ctx, mode, a.create(i)); row != nil {
			got(a.place(i), row)
		} else if err == fault.LoadCycle && //nolint:errorlint // see above
			c.Flights.Separate != nil && c.Source.MayLoadSeparately(ctx, a.texts[i]) {
			separate = append(separate, i)
		} else {
			failed(a.place(i), err)
		}
	}
	a.subset(separate).read(ctx, c.Flights.Separate, func(i int, row *fetch.Round) {
		c.Counters.Unvalidated.Add(1)
		got(i, row)
	}, failed)
}

// copyFor returns the cached copy of a key, or nil if the read may not be served a copy.
func (c *Core) copyFor(ctx context.Context, mode fetch.Mode, r *round) *fetch.Round {
	if mode != fetch.Plain || c.Shadow != nil {
		return nil
	}
	if ok, _ := c.peek(ctx, &r.Result); !ok {
		return nil
	}
	r.Result.Hit = true
	return &r.Result
}

// peek is Reader.Peek.
func (c *Core) peek(ctx context.Context, row *fetch.Round) (ok bool, err error) {
	switch {
	case c.memory.bypass.Load() == 0 && c.Fetch.FromMemory(row):
		return true, nil
	case c.Closed():
		return false, fault.Closed
	default:
		return c.Fetch.Peek(ctx, row)
	}
}

// warm is Reader.Warm.
func (c *Core) warm(ctx context.Context, a request, failed func(int, error)) (loads int) {
	stored := func(i int, got *fetch.Round) {
		if got.Unvalidated {
			failed(i, ErrNotStored)
		}
	}
	if c.cache.Store == nil || c.Bypassed() {
		return a.read(ctx, c.Flights.Refreshes, stored, failed)
	}
	var old []int
	all := a
	all.places = nil
	loads = all.read(ctx, c.Flights.Warming, func(i int, got *fetch.Round) {
		if got.EndsSoon {
			old = append(old, i)
			return
		}
		stored(a.place(i), got)
	}, func(i int, err error) { failed(a.place(i), err) })
	return loads + a.subset(old).read(ctx, c.Flights.Refreshes, stored, failed)
}

// RefreshKeys refreshes keys that KeyOf has returned. If a value could not be stored, its error
// is ErrNotStored.
func (c *Core) RefreshKeys(ctx context.Context, keys []any) []error {
	errs := make([]error, len(keys))
	a := request{texts: make([]string, len(keys))}
	for i, key := range keys {
		a.texts[i], _ = c.typed.Text(key) // no error, because the key was parsed from a text
	}
	a.create = func(i int) *round { return c.roundOf(keys[i], a.texts[i]) }
	a.read(ctx, c.Flights.Refreshes, func(i int, got *fetch.Round) {
		if got.Unvalidated {
			errs[i] = ErrNotStored
		}
	}, func(i int, err error) { errs[i] = err })
	return errs
}

// roundOf returns a new round of a key, which is not shared.
func (c *Core) roundOf(key any, text string) *round {
	r := new(round)
	r.Result.Begin(r, key, text, c.typed.hash(key, text))
	return r
}

func owner(r *fetch.Round) *round { return r.Owner.(*round) }

// fetched returns the rounds of package fetch that rounds contain.
func fetched(rounds []*round) []*fetch.Round {
	if len(rounds) == 1 {
		return fetch.Single(&rounds[0].Result)
	}
	results := make([]*fetch.Round, len(rounds))
	for i, r := range rounds {
		results[i] = &r.Result
	}
	return results
}

// flightRounds is a fetch.Flight.
type flightRounds struct {
	*flight.Flight[string, fetch.Round]
}

func (f flightRounds) Complete(done []*fetch.Round) {
	if len(done) == 0 {
		return
	}
	rounds := make([]*round, len(done))
	for i, r := range done {
		rounds[i] = owner(r)
		rounds[i].Err = r.Err
	}
	f.Flight.Complete(rounds)
}

func (f flightRounds) TakeIn(r *fetch.Round) { f.Flight.TakeIn(owner(r)) }

// splitEnded splits rounds into those that have ended, and the others.
func splitEnded(rounds []*round) (ended, rest []*round) {
	n := 0
	for _, r := range rounds {
		if r.Result.Ended() {
			r.Err = r.Result.Err
			n++
		}
	}
	switch n {
	case 0:
		return nil, rounds
	case len(rounds):
		return rounds, nil
	}
	hasEnded := func(r *round) bool { return r.Result.Ended() }
	ended = slices.DeleteFunc(slices.Clone(rounds), func(r *round) bool { return !hasEnded(r) })
	return ended, slices.DeleteFunc(rounds, hasEnded)
}

func never(*fetch.Round) bool { return false }

// await is called when a caller with this context is about to wait for rounds: see flight.Hooks.
func (c *Core) await(ctx context.Context, rounds []*round) (done func(), refused []error) {
	return c.awaitRounds(ctx, rounds, false)
}

// awaitSeparate is await for rounds of keys that are loaded separately.
func (c *Core) awaitSeparate(ctx context.Context, rounds []*round) (done func(), refused []error) {
	return c.awaitRounds(ctx, rounds, true)
}

func (c *Core) awaitRounds(ctx context.Context, rounds []*round, separate bool) (done func(), refused []error) {
	return c.Source.Await(ctx, len(rounds), separate, func(i int) (string, bool) {
		if rounds[i] == nil || rounds[i].Completed() {
			return "", false
		}
		return rounds[i].Key, true
	})
}
