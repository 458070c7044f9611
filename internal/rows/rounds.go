package rows

import (
	"context"
	"slices"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/source"
)

// round is one round of one key, as package flight has it. Its Result is what package fetch knows.
type round[K comparable] = flight.Round[K, fetch.Round]

// Group is rounds that are read in one way.
type Group[K comparable] = flight.Group[K, fetch.Round]

// Groups are the groups of a loader.
type Groups[K comparable] struct {
	Plain      *Group[K]
	Fresh      *Group[K] // memory may not answer; Plain, where it makes no difference
	Unfiltered *Group[K] // the filter is not asked; Plain, where there is none
	Refreshes  *Group[K]
	Straight   *Group[K] // of the database, for a shadow; else nil
	Apart      *Group[K] // of the database, one key a call, for the loads of batches; nil for a loader of single rows
}

func (g *Groups[K]) of(how fetch.How) *Group[K] {
	if how == fetch.Fresh {
		return g.Fresh
	}
	return g.Plain
}

func (g *Groups[K]) all() []*Group[K] {
	all := []*Group[K]{g.Plain, g.Fresh, g.Unfiltered, g.Refreshes}
	if g.Straight != nil {
		all = append(all, g.Straight)
	}
	if g.Apart != nil {
		all = append(all, g.Apart)
	}
	return all
}

func (r *Reader[K, V]) newGroups() Groups[K] {
	late := r.Fetch.Current
	if r.Keys.byText { // a caller may have changed the key that its round shares with an earlier one
		late = never
	}
	g := Groups[K]{Plain: r.group(fetch.Plain, late), Refreshes: r.refreshGroup()}
	g.Fresh, g.Unfiltered = g.Plain, g.Plain
	if r.memory.tier != nil || r.Fetch.HasFreshFilter() {
		g.Fresh = r.group(fetch.Fresh, never)
	}
	if r.options.Filter != nil {
		g.Unfiltered = r.group(fetch.Unfiltered, late)
	}
	if r.Shadow != nil {
		g.Straight = r.straightGroup(r.chunk(), r.await)
	}
	if r.options.Batch {
		g.Apart = r.straightGroup(1, r.awaitApart)
	}
	return g
}

// Lone is a round that no caller waits for.
func Lone[K comparable](key K) *fetch.Round {
	r := &round[K]{Key: key}
	r.Result.Owner = r
	return &r.Result
}

func owner[K comparable](r *fetch.Round) *round[K] { return r.Owner.(*round[K]) }

func keyOf[K comparable](r *fetch.Round) K { return owner[K](r).Key }

func typedKeys[K comparable](rounds []*fetch.Round) []K {
	keys := make([]K, len(rounds))
	for i, r := range rounds {
		keys[i] = keyOf[K](r)
	}
	return keys
}

// Value is a value that package fetch has had, which is a *V there: that goes from hand to hand
// without an allocation. The zero V if there is none.
func Value[V any](value any) (v V) {
	if value != nil {
		v = *value.(*V)
	}
	return v
}

// fetched are rounds as package fetch has them.
func fetched[K comparable](rounds []*round[K]) []*fetch.Round {
	if len(rounds) == 1 {
		return fetch.Of(joined(rounds[0]))
	}
	of := make([]*fetch.Round, len(rounds))
	for i, r := range rounds {
		of[i] = joined(r)
	}
	return of
}

func joined[K comparable](r *round[K]) *fetch.Round {
	r.Result.Owner = r
	return &r.Result
}

// completing gives out rounds of a flight.
type completing[K comparable] struct {
	*flight.Flight[K, fetch.Round]
}

func (f completing[K]) Complete(done []*fetch.Round) {
	if len(done) == 0 {
		return
	}
	rounds := make([]*round[K], len(done))
	for i, r := range done {
		rounds[i] = owner[K](r)
		rounds[i].Err = r.Err
	}
	f.Flight.Complete(rounds)
}

func (f completing[K]) TakeIn(r *fetch.Round) { f.Flight.TakeIn(owner[K](r)) }

// group makes rounds that are read so; late tells whether those who come while a round runs may be
// given its result.
func (r *Reader[K, V]) group(how fetch.How, late func(*fetch.Round) bool) *Group[K] {
	return flight.New(flight.Hooks[K, fetch.Round]{
		First: func(ctx context.Context, rounds []*round[K]) (done, rest []*round[K]) {
			r.Fetch.First(ctx, how, fetched(rounds))
			return firstDone(rounds)
		},
		Fly: func(ctx context.Context, f *flight.Flight[K, fetch.Round]) {
			r.Fetch.Read(ctx, how, fetched(f.Rounds), completing[K]{f})
		},
		Await: r.await, Late: late, Caught: r.cache.Caught,
	})
}

// firstDone parts rounds into those that are over, and the others.
func firstDone[K comparable](rounds []*round[K]) (done, rest []*round[K]) {
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
	isOver := func(r *round[K]) bool { return r.Result.Over() }
	done = slices.DeleteFunc(slices.Clone(rounds), func(r *round[K]) bool { return !isOver(r) })
	return done, slices.DeleteFunc(rounds, isOver)
}

// refreshGroup makes rounds that load anew.
func (r *Reader[K, V]) refreshGroup() *Group[K] {
	return flight.New(flight.Hooks[K, fetch.Round]{
		Fly: func(ctx context.Context, f *flight.Flight[K, fetch.Round]) {
			r.Fetch.Refresh(ctx, fetched(f.Rounds), completing[K]{f})
		},
		Await: r.await, Late: never, Caught: r.cache.Caught,
	})
}

func never(*fetch.Round) bool { return false }

// await is called when a caller with this context is about to wait for rounds: see flight.Hooks.
func (r *Reader[K, V]) await(ctx context.Context, rounds []*round[K]) (over func(), refused []error) {
	return r.awaiting(ctx, rounds, false)
}

// awaitApart is await for rounds of keys that are loaded apart.
func (r *Reader[K, V]) awaitApart(ctx context.Context, rounds []*round[K]) (over func(), refused []error) {
	return r.awaiting(ctx, rounds, true)
}

func (r *Reader[K, V]) awaiting(ctx context.Context, rounds []*round[K], apart bool) (over func(), refused []error) {
	return r.Source.Await(ctx, len(rounds), apart, func(i int) (string, bool) {
		if rounds[i] == nil || rounds[i].Completed() {
			return "", false
		}
		text, err := r.Keys.Text(rounds[i].Key)
		return text, err == nil
	})
}

// newFetcher makes what reads the keys that memory does not answer.
func (r *Reader[K, V]) newFetcher() *fetch.Fetcher {
	o := r.options.Fetch
	o.Chunk, o.Calls = r.chunk(), r.calls()
	o.Keys, o.Memory, o.Generations, o.Source = r.Keys.Namespace, r.memory.tier, &r.memory.generations, r.Source
	o.Items, o.Codec, o.Counters = (*items[K, V])(r), values[V]{r.options.Codec, r.cache.Panicked}, &r.Counters
	o.Life, o.Bypassed = r.life, r.Bypassed
	if r.options.Filter != nil {
		o.Filter = r.options.Filter
	}
	o.Text = func(of *fetch.Round) (string, error) { return r.Keys.Text(keyOf[K](of)) }
	o.Query = func(rounds []*fetch.Round) source.Query {
		var texts []string
		if r.Keys.byText {
			texts = make([]string, len(rounds))
			for i, of := range rounds {
				texts[i] = of.Text()
			}
		}
		return r.query(typedKeys[K](rounds), texts)
	}
	o.Loaded = func(rounds []*fetch.Round, rows []source.Row) {
		if r.rebuilt.returned != nil {
			note(r.rebuilt.returned, typedKeys[K](rounds), rows)
		}
	}
	if r.Shadow != nil {
		o.RedisDown = fetch.FailWhenDown // else the database would be asked twice for all that is read meanwhile
	}
	return fetch.New(r.cache.Shared, o)
}
