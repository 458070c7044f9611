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
		settled := false
		defer func() {
			if !settled { // a codec called runtime.Goexit
				r.Err, r.step = b.l.cache.Caught(recover()), over
			}
		}()
		state := lease.State{Kind: lease.Stored, Long: true, Raw: r.beginning}
		r.beginning = nil
		err := b.l.whole(b.ctx, r, &state)
		b.settle(r, &state, err)
		settled = true
	})
	b.l.refreshDue(rounds)
	b.complete(rounds)
}

// whole reads the rest of an entry of which only the beginning was read. One that is longer than
// the loader stores is Unknown then.
func (l *Fetcher) whole(ctx context.Context, r *Round, state *lease.State) (err error) {
	if state.Kind != lease.Stored || !state.Long {
		return nil
	}
	most := lease.HeadSize + l.MaxValueBytes
	if r.hashed {
		most += len(r.text)
	}
	*state, err = l.cache.Store.Fetch(ctx, r.name, state.Raw, most)
	return err
}
