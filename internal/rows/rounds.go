package rows

import (
	"context"
	"errors"
	"slices"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
)

// asked is the keys of one call, by their texts. places are their indexes in the caller's slice;
// nil: all keys of the caller are here. create makes a round of one.
type asked struct {
	texts  []string
	places []int
	create func(i int) *round
}

// place returns the caller's index of a key.
func (a *asked) place(i int) int {
	if a.places != nil {
		return a.places[i]
	}
	return i
}

// at returns the keys at these indexes, which are indexes of a.
func (a *asked) at(some []int) asked {
	part := asked{texts: make([]string, len(some)), places: make([]int, len(some)), create: func(i int) *round { return a.create(some[i]) }}
	for i, at := range some {
		part.texts[i], part.places[i] = a.texts[at], a.place(at)
	}
	return part
}

// read waits for a round of each key. It calls got or failed with the caller's index of the key.
func (a asked) read(ctx context.Context, g *Group, got func(int, *fetch.Round), failed func(int, error)) {
	if len(a.texts) == 0 {
		return
	}
	rounds, errs := g.DoMany(ctx, a.texts, a.create)
	for i, r := range rounds {
		err := errs[i]
		if err == nil {
			err = r.Err
		}
		if err != nil {
			failed(a.place(i), err)
		} else {
			got(a.place(i), &r.Result)
		}
	}
}

// get is Reader.Get of the key of a text.
func (c *Core) get(ctx context.Context, how fetch.How, text string, create func() *round) (*fetch.Round, error) {
	c.Counters.Misses.Add(1)
	got, err := c.Groups.of(how).Do(ctx, text, create)
	switch {
	case err == nil:
		return got, nil
	case !errors.Is(err, fault.LoadCycle):
		return nil, err
	}
	of := create()
	if copied := c.copyFor(ctx, how, of, err); copied != nil {
		return copied, nil
	}
	return c.orApart(ctx, text, of, err)
}

// copyFor is for a load that has asked for a key whose load waits for it, as for its own, while
// others read that key, too: it would wait in vain for what they get. Alone it would have been
// given the copy that is cached. So copyFor returns that copy, if there is one, and else nil, as it
// does if err is any other error.
func (c *Core) copyFor(ctx context.Context, how fetch.How, of *round, err error) *fetch.Round {
	if how != fetch.Plain || !errors.Is(err, fault.LoadCycle) {
		return nil
	}
	item, ok, _ := c.peek(ctx, &of.Result)
	if !ok {
		return nil
	}
	return &fetch.Round{Result: fetch.Result{Value: item.Value, Null: item.Null, Hit: true}}
}

// getMany is Reader.GetMany.
func (c *Core) getMany(ctx context.Context, how fetch.How, a asked, got func(int, *fetch.Round), failed func(int, error)) {
	c.Counters.Misses.Add(int64(len(a.texts)))
	c.readOrApart(ctx, c.Groups.of(how), a, got, got, func(i int, err error) *fetch.Round {
		if !errors.Is(err, fault.LoadCycle) {
			return nil
		}
		return c.copyFor(ctx, how, roundOf(a.create(i).Result.Key, a.texts[i]), err)
	}, failed)
}

// A row of a batch may need another row of the same batch. Its load asks for that row while the
// batch is being loaded, and would wait for itself. Such a row is loaded apart: once more, in a
// call for its key alone, without a lease and without being stored.

// orApart reads a key apart if err is that its read must not be waited for, and if it may be read
// so. Otherwise it returns err.
func (c *Core) orApart(ctx context.Context, text string, of *round, err error) (*fetch.Round, error) {
	if !c.mayLoadApart(ctx, text, err) {
		return nil, err
	}
	got, err := c.Groups.Apart.Do(ctx, text, func() *round { return roundOf(of.Result.Key, text) })
	if err == nil {
		c.Counters.Unvalidated.Add(1)
	}
	return got, err
}

// mayLoadApart reports whether a key may be read apart. An err that only wraps fault.LoadCycle is
// of a load that this one has asked for.
func (c *Core) mayLoadApart(ctx context.Context, text string, err error) bool {
	return err == fault.LoadCycle && c.Groups.Apart != nil && c.Source.MayLoadApart(ctx, text) //nolint:errorlint // see above
}

// readOrApart reads keys, and then those apart that must not be waited for, and may be read so. If
// instead, which is called with the index in a of a key that has failed, returns a round, that is
// the result.
func (c *Core) readOrApart(ctx context.Context, g *Group, a asked, got, gotApart func(int, *fetch.Round), instead func(int, error) *fetch.Round, failed func(int, error)) {
	var apart []int
	all := a
	all.places = nil
	all.read(ctx, g, func(i int, of *fetch.Round) { got(a.place(i), of) }, func(i int, err error) {
		if of := instead(i, err); of != nil {
			got(a.place(i), of)
		} else if c.mayLoadApart(ctx, a.texts[i], err) {
			apart = append(apart, i)
		} else {
			failed(a.place(i), err)
		}
	})
	if len(apart) > 0 {
		a.at(apart).read(ctx, c.Groups.Apart, func(i int, of *fetch.Round) {
			c.Counters.Unvalidated.Add(1)
			gotApart(i, of)
		}, failed)
	}
}

// peek is Reader.Peek.
func (c *Core) peek(ctx context.Context, of *fetch.Round) (item fetch.Item, ok bool, err error) {
	if item, ok = c.peekMemory(of); ok {
		return item, true, nil
	}
	if c.Closed() {
		return item, false, fault.Closed
	}
	if ok, err = c.Fetch.Peek(ctx, of); ok {
		return fetch.Item{Value: of.Value, Null: of.Null}, true, nil
	}
	return item, false, err
}

// peekMemory is the copy in memory, if it may be given out. Without Redis it may be stale.
func (c *Core) peekMemory(of *fetch.Round) (item fetch.Item, ok bool) {
	if c.memory.bypass.Load() != 0 {
		return item, false
	}
	if c.cache.Store == nil {
		item, _, ok = c.Fetch.Past(of)
		return item, ok
	}
	return c.typed.GetItem(of)
}

// warm is Reader.Warm.
func (c *Core) warm(ctx context.Context, a asked, failed func(int, error)) (loaded int) {
	stored := func(i int, got *fetch.Round) {
		if got.Unvalidated {
			failed(i, ErrNotStored)
		}
	}
	if c.cache.Store == nil || c.Bypassed() {
		a.read(ctx, c.Groups.Refreshes, stored, failed)
		return len(a.texts)
	}
	var old []int
	all := a
	all.places = nil
	all.read(ctx, c.Groups.Warming, func(i int, got *fetch.Round) {
		if got.EndsSoon {
			old = append(old, i)
			return
		}
		if !got.Hit {
			loaded++
		}
		stored(a.place(i), got)
	}, func(i int, err error) {
		loaded++
		failed(a.place(i), err)
	})
	a.at(old).read(ctx, c.Groups.Refreshes, stored, failed)
	return loaded + len(old)
}

// RefreshKeys refreshes keys that KeyOf has returned. The error of a value that could not be stored
// is ErrNotStored.
func (c *Core) RefreshKeys(ctx context.Context, keys []any) []error {
	errs := make([]error, len(keys))
	a := asked{texts: make([]string, len(keys))}
	for i, key := range keys {
		a.texts[i], _ = c.typed.textOf(key) // it was made of one
	}
	a.create = func(i int) *round { return roundOf(keys[i], a.texts[i]) }
	a.read(ctx, c.Groups.Refreshes, func(i int, got *fetch.Round) {
		if got.Unvalidated {
			errs[i] = ErrNotStored
		}
	}, func(i int, err error) { errs[i] = err })
	return errs
}

// roundOf makes a round of a key that is not shared.
func roundOf(key any, text string) *round {
	r := new(round)
	r.Result.Begin(r, key, text)
	return r
}

func owner(r *fetch.Round) *round { return r.Owner.(*round) }

// fetched returns rounds as package fetch knows them.
func fetched(rounds []*round) []*fetch.Round {
	if len(rounds) == 1 {
		return fetch.Of(&rounds[0].Result)
	}
	of := make([]*fetch.Round, len(rounds))
	for i, r := range rounds {
		of[i] = &r.Result
	}
	return of
}

// completing gives out rounds of a flight.
type completing struct {
	*flight.Flight[string, fetch.Round]
}

func (f completing) Complete(done []*fetch.Round) {
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

func (f completing) TakeIn(r *fetch.Round) { f.Flight.TakeIn(owner(r)) }

// firstDone parts rounds into those that are over, and the others.
func firstDone(rounds []*round) (done, rest []*round) {
	n := 0
	for _, r := range rounds {
		if r.Result.Over() {
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
	isOver := func(r *round) bool { return r.Result.Over() }
	done = slices.DeleteFunc(slices.Clone(rounds), func(r *round) bool { return !isOver(r) })
	return done, slices.DeleteFunc(rounds, isOver)
}

func never(*fetch.Round) bool { return false }

// await is called when a caller with this context is about to wait for rounds: see flight.Hooks.
func (c *Core) await(ctx context.Context, rounds []*round) (over func(), refused []error) {
	return c.awaiting(ctx, rounds, false)
}

// awaitApart is await for rounds of keys that are loaded apart.
func (c *Core) awaitApart(ctx context.Context, rounds []*round) (over func(), refused []error) {
	return c.awaiting(ctx, rounds, true)
}

func (c *Core) awaiting(ctx context.Context, rounds []*round, apart bool) (over func(), refused []error) {
	return c.Source.Await(ctx, len(rounds), apart, func(i int) (string, bool) {
		if rounds[i] == nil || rounds[i].Completed() {
			return "", false
		}
		return rounds[i].Key, true
	})
}
