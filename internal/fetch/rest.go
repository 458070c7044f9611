package fetch

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// fetchRest reads the rest of long entries, by a way of its own: if there are other rounds, by
// themselves, for neither is to wait for the other.
func (b *batch) fetchRest() {
	b.skipRedis(toFetch)
	rounds := at(b.open, toFetch)
	switch {
	case len(rounds) == 0:
		return
	case len(rounds) < len(b.open):
		b.leave(rounds)
		return
	}
	AtOnce(rounds, MaxCalls, func(r *Round, _ func()) {
		held := lease.State{Kind: lease.Stored, Long: true, Raw: r.beginning}
		r.beginning = nil
		err := b.l.whole(b.ctx, r, &held)
		b.settle(r, &held, err)
	})
	b.l.refreshDue(rounds)
	b.complete(rounds)
}

// whole reads the rest of an entry of which only the beginning was read. One that is longer than
// the loader stores is Unknown then.
func (l *Fetcher) whole(ctx context.Context, r *Round, held *lease.State) (err error) {
	if held.Kind != lease.Stored || !held.Long {
		return nil
	}
	most := lease.HeadSize + l.MaxValueBytes
	if r.hashed {
		most += len(r.text)
	}
	*held, err = l.cache.Store.Fetch(ctx, r.name, held.Raw, most)
	return err
}
