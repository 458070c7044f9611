package cacheaside

import (
	"context"
	"slices"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// fetch reads the rest of long entries, by a way of its own: if there are other rounds, by
// themselves, for neither is to wait for the other.
func (b *batch[K, V]) fetch() {
	b.unasked(toFetch)
	rounds := at(b.open, toFetch)
	switch {
	case len(rounds) == 0:
		return
	case len(rounds) < len(b.open):
		b.leave(rounds)
		return
	}
	atOnce(rounds, maxCalls, func(r *round[K, V], _ func()) {
		held := lease.State{Kind: lease.Stored, Long: true, Raw: r.Result.beginning}
		r.Result.beginning = nil
		err := b.l.whole(b.ctx, &r.Result, &held)
		b.settle(r, &held, err)
	})
	b.l.renewAll(rounds)
	b.land(rounds)
}

// whole reads the rest of an entry of which only the beginning was read. One that is longer than
// the loader stores is Unknown then.
func (l *Loader[K, V]) whole(ctx context.Context, s *state[V], held *lease.State) (err error) {
	if held.Kind != lease.Stored || !held.Long {
		return nil
	}
	most := lease.HeadSize + l.options.MaxValueBytes
	if s.hashed {
		most += len(s.text)
	}
	*held, err = l.cache.store.Fetch(ctx, s.name, held.Raw, most)
	return err
}

// leave lets rounds go on by themselves.
func (b *batch[K, V]) leave(rounds []*round[K, V]) {
	part := &batch[K, V]{l: b.l, ctx: b.ctx, flight: b.flight, rounds: rounds, open: slices.Clone(rounds), refresh: b.refresh}
	leave := make(map[*round[K, V]]bool, len(rounds))
	for _, r := range rounds {
		leave[r] = true
	}
	goesOn := func(r *round[K, V]) bool { return leave[r] }
	b.rounds = slices.DeleteFunc(slices.Clone(b.rounds), goesOn)
	b.open = slices.DeleteFunc(slices.Clone(b.open), goesOn)
	b.parts.Go(part.run)
}
