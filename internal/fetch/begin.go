package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/fault"
)

// begin determines what a round needs before its first lookup in Redis.
func (f *Fetcher) begin(r *Round) {
	if r.step != toBegin {
		return
	}
	if r.verdict == filterNotAsked {
		r.bypass = f.Bypassed()
	}
	if f.Memory != nil {
		r.sharedHash = f.Keys.Hash(r.text)
	}
	if f.cache.Store == nil || r.bypass {
		f.takeSnapshot(r)
		r.notCached = f.onHold(r)
		f.preferPrimary(r)
		r.withoutLease, r.step = true, toLoad
		return
	}
	r.name, r.nameHashed = f.Keys.Name(r.text)
	r.slotRange = uint8(f.cache.Conn.Range(r.name))
	if f.Memory != nil {
		f.cache.Bus.Listen()
	}
	f.prepareLookup(r)
}

// onHold reports whether the key of a round is on hold, without asking Redis. The round has
// already taken its snapshot, and an invalidation sets the hold before it raises the memory
// version. So a load that misses the hold does not get into memory.
func (f *Fetcher) onHold(r *Round) bool {
	if f.cache.Holds == nil {
		return false
	}
	since := f.Generations[0].Load().Since
	return f.cache.Holds.Held(f.Keys.Hash(r.text)) || !since.IsZero() && time.Since(since) < f.cache.ReplicaLag
}

// confirmGenerations polls Redis for the loader's generations that are unknown, or whose
// confirmation is older than MaxStaleness.
func (b *batch) confirmGenerations() {
	b.skipRedis(toConfirm)
	rounds := atStep(b.open, toConfirm)
	if len(rounds) == 0 {
		return
	}
	errs := b.fetcher.confirmGenerations(b.ctx, rounds, b.refresh)
	if b.ctx.Err() != nil {
		return
	}
	for i, r := range rounds {
		switch {
		case errs[i] != nil && b.refresh:
			r.Err, r.step = fault.OfRedis(errs[i]), ended
		case errs[i] != nil:
			b.fetcher.withoutRedis(r, errs[i])
		}
	}
}

// confirmGenerations moves rounds at step toConfirm to the lookup. It returns an error for each
// round whose generation could not be confirmed, otherwise nil.
func (f *Fetcher) confirmGenerations(ctx context.Context, rounds []*Round, patient bool) []error {
	var asked [conn.Ranges]bool
	for _, r := range rounds {
		asked[r.slotRange] = true
	}
	var errs [conn.Ranges]error
	var all sync.WaitGroup
	for slotRange := range uint8(conn.Ranges) {
		if asked[slotRange] {
			all.Go(func() { errs[slotRange] = f.confirmRange(ctx, slotRange, patient) })
		}
	}
	all.Wait()
	out := make([]error, len(rounds))
	for i, r := range rounds {
		if out[i] = errs[r.slotRange]; out[i] != nil {
			f.count(out[i])
			continue
		}
		f.takeSnapshot(r)
		r.step = toLookUp
	}
	return out
}

// confirmRange asks Redis for the generation of a range. If patient is true, it waits until ctx
// ends, and otherwise for at most ReadTimeout.
func (f *Fetcher) confirmRange(ctx context.Context, slotRange uint8, patient bool) error {
	if patient {
		return f.cache.Bus.Confirm(ctx, slotRange)
	}
	began := time.Now()
	bound, cancel := context.WithTimeout(ctx, f.cache.ReadTimeout)
	defer cancel()
	err := f.cache.Bus.Confirm(bound, slotRange)
	err = f.cache.Conn.Explain(ctx, err, "a poll", f.cache.Bus.Key(slotRange), began)
	if err != nil && bound.Err() != nil { // other errors are of the poll, which has reported them
		f.cache.Conn.Failed(ctx, f.cache.Bus.Key(slotRange), err)
	}
	return err
}
