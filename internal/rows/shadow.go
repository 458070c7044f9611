package rows

import (
	"context"
	"slices"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/source"
)

// straightGroup makes rounds that are read from the database, with so many keys in a call.
func (r *Reader[K, V]) straightGroup(chunk int, await awaiting[K]) *Group[K] {
	return flight.New(flight.Hooks[K, fetch.Round]{
		Fly:   func(ctx context.Context, f *flight.Flight[K, fetch.Round]) { r.readStraight(ctx, f, chunk) },
		Await: await, Late: never, Caught: r.cache.Caught,
	})
}

type awaiting[K comparable] = func(ctx context.Context, rounds []*round[K]) (over func(), refused []error)

// getStraight is Get from the database. how is the read that is compared.
func (r *Reader[K, V]) getStraight(ctx context.Context, how fetch.How, key K) (*fetch.Round, error) {
	r.Shadow.Reads.Add(1)
	got, err := r.Groups.Straight.Do(ctx, key)
	if err != nil {
		return r.orApart(ctx, key, err)
	}
	r.compareLater(key, got, how)
	return got, nil
}

// getManyStraight is GetMany from the database.
func (r *Reader[K, V]) getManyStraight(ctx context.Context, how fetch.How, keys []K, got func(int, *fetch.Round), failed func(int, error)) {
	r.Shadow.Reads.Add(int64(len(keys)))
	var apart []int
	many(ctx, r.Groups.Straight, keys, func(i int, of *fetch.Round) {
		r.compareLater(keys[i], of, how)
		got(i, of)
	}, r.unlessApart(ctx, keys, &apart, failed))
	r.getApart(ctx, keys, apart, got, failed)
}

// readStraight is one flight of reads of the database. Even a key without a text is read.
func (r *Reader[K, V]) readStraight(ctx context.Context, f *flight.Flight[K, fetch.Round], chunk int) {
	chunks := slices.Collect(slices.Chunk(f.Rounds, chunk))
	fetch.AtOnce(chunks, r.calls(), func(rounds []*round[K], waiting func()) {
		keys := make([]K, len(rounds))
		for i, of := range rounds {
			keys[i] = of.Key
		}
		for i, row := range r.LoadAlone(ctx, keys, source.Call{Waiting: waiting}) {
			of := &rounds[i].Result
			of.Value, of.Null, rounds[i].Err = row.Value, row.Null, row.Err
			if row.Err != nil && ctx.Err() != nil {
				rounds[i].Err = r.Fetch.Stopped(ctx)
			}
		}
		f.Complete(rounds)
	})
}

// compareLater has the caches read a key that is compared, and does not wait for it.
func (r *Reader[K, V]) compareLater(key K, row *fetch.Round, how fetch.How) {
	if r.Bypassed() {
		return
	}
	text, err := r.Keys.Text(key)
	if err != nil {
		r.Shadow.Undecided.Add(1)
		return
	}
	if !r.Shadow.Chosen(r.Keys.Hash(text)) {
		return
	}
	if !r.Shadow.Begin() {
		r.Shadow.Undecided.Add(1)
		return
	}
	go func() {
		defer r.Shadow.End()
		r.compareShadow(key, copyOfRound(row), how)
	}()
}

// compareShadow compares the copies of the caches with a row that was read just before.
func (r *Reader[K, V]) compareShadow(key K, row audit.Copy, how fetch.How) {
	ctx, cancel := context.WithTimeout(r.life, 2*r.options.Fetch.LoadTimeout+audit.ConfirmAfter)
	defer cancel()
	first, hit := r.shadowRead(ctx, key, how)
	switch {
	case !first.There:
		r.Shadow.Undecided.Add(1)
		return
	case !hit:
		r.Shadow.Misses.Add(1)
		return
	}
	again := func() audit.Copy {
		second, hit := r.shadowRead(ctx, key, how)
		second.There = second.There && hit // a value that was loaded only now is no copy
		return second
	}
	r.Shadow.Count(r.audited(key, again, r.Shadow.MayLoad).CompareWith(ctx, first, row))
}

// shadowRead is a read by the caches, and whether they had the value. Else it is loaded, if it may
// be.
func (r *Reader[K, V]) shadowRead(ctx context.Context, key K, how fetch.How) (c audit.Copy, hit bool) {
	if how != fetch.Fresh {
		if item, ok := r.inMemory(key, forgetful); ok {
			return copyOf(item), true
		}
	}
	if !r.Shadow.MayLoad() {
		return c, false
	}
	r.Counters.Misses.Add(1)
	got, err := r.Groups.of(how).Do(ctx, key)
	if err != nil {
		return c, false
	}
	if hit = got.Hit || got.FilterRefused(); hit {
		r.Shadow.NotLoaded()
	}
	return copyOfRound(got), hit
}
