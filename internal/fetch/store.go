package fetch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/source"
)

// MaxRefusals is the number of refused stores after which a round no longer begins again. The
// result of its next load is returned even if Redis refuses to store that, too. So a read ends
// even if the key is invalidated all the time.
const MaxRefusals = 3

// store replaces the leases of rounds by the loaded values, or by failure markers.
func (b *batch) store(rounds []*Round, rows []source.Row) {
	defer b.announceEnds(rounds)
	if b.ctx.Err() != nil && slices.ContainsFunc(rows, func(row source.Row) bool { return row.Err != nil }) {
		return // the load was stopped, so the key has not failed; batch.more ends the rounds
	}
	all := make([]lease.Filling, 0, len(rounds))
	var fillings []*lease.Filling // of all
	var filled []*Round
	var unstorable []*Round
	var took time.Duration // their load
	for i, r := range rounds {
		row := rows[i]
		if row.Err == nil {
			row.Err = b.fetcher.setGroups(r, row)
			r.groupsHeld = b.fetcher.groupsHeldAt(r.groups, row.Began)
		}
		b.fetcher.forgetFailure(r, row.Err)
		switch {
		case row.Err != nil:
			r.Err, r.notAttempted = row.Err, row.NotAttempted
		case r.withoutLease:
			b.finishWithoutLease(r, row)
		default:
			r.Value, r.Null = row.Value, row.Null
			filling, err := b.fetcher.filling(r, row)
			switch {
			case r.groupsHeld && err == nil:
				r.unstorable = lease.GroupHeld
				b.fetcher.Counters.Held.Add(1)
			case b.fetcher.Unfit(err):
				r.unstorable = reasonOf(err)
			case err != nil:
				r.Err = err
			default:
				all = append(all, filling)
				fillings, filled = append(fillings, &all[len(all)-1]), append(filled, r)
			}
			if r.unstorable != 0 {
				b.endUnvalidated(r)
				unstorable, took = append(unstorable, r), row.Took
			}
		}
	}
	b.failAll(slices.DeleteFunc(slices.Clone(rounds), func(r *Round) bool { return r.Err == nil }), nil)
	b.endUnstorable(unstorable, took)
	if len(fillings) == 0 {
		return
	}
	b.put(filled, fillings)
	for i, r := range filled {
		b.finishStore(r, fillings[i])
	}
	if b.refresh && !b.background {
		b.announce(filled)
	}
}

// announce notifies other processes of the values that a Refresh has stored, so that they do not
// serve older ones from memory.
func (b *batch) announce(rounds []*Round) {
	stored := slices.DeleteFunc(slices.Clone(rounds), func(r *Round) bool {
		return r.step != ended || r.Err != nil || r.Unvalidated
	})
	errs := b.fetcher.cache.Bus.Do(context.WithoutCancel(b.ctx), names(stored), b.fetcher.hashes(stored), nil)
	for i, err := range errs {
		if err != nil {
			b.fetcher.CountWrite(err)
			stored[i].Err = fault.OfRedis(err)
		}
	}
}

// Unfit reports whether err, the error of an encoding, means that the value is returned without
// being stored: it is too large, or the codec would change it. Unfit counts such values.
func (f *Fetcher) Unfit(err error) bool {
	if changed, ok := errors.AsType[codec.NotCarried](err); ok {
		f.Counters.NotCarried.Add(1)
		f.cache.Warn("a value is not cached", f.Name, changed)
		return true
	}
	if errors.Is(err, codec.ErrTooLarge) {
		f.Counters.TooLarge.Add(1)
		return true
	}
	return false
}

func reasonOf(unfit error) lease.Reason {
	if errors.Is(unfit, codec.ErrTooLarge) {
		return lease.TooLarge
	}
	return lease.NotCarried
}

// endUnstorable ends the leases of rounds whose values are not stored, and leaves markers that say
// so. took is the duration of their load. Without a marker, each waiting process would get the
// lease in turn, load the same row, and give it to no other process.
//
// A refresh first deletes the older entries from Redis and memory. The next read leaves the marker.
func (b *batch) endUnstorable(rounds []*Round, took time.Duration) {
	if len(rounds) == 0 {
		return
	}
	if b.refresh {
		for _, err := range b.fetcher.delete(context.WithoutCancel(b.ctx), rounds) {
			b.fetcher.CountWrite(err)
		}
		for _, r := range rounds {
			// after the delete in Redis; otherwise a reader could fill memory with the old entry
			// again
			b.fetcher.forget(r)
		}
		b.release(b.attempts(rounds))
		return
	}
	for _, reason := range []lease.Reason{lease.TooLarge, lease.NotCarried, lease.GroupHeld} {
		var attempts []*lease.Attempt
		for _, r := range rounds {
			if r.unstorable == reason && b.mayWrite(r) {
				attempts = append(attempts, r.attempt)
			}
		}
		b.fetcher.cache.Store.EndUnstorable(context.WithoutCancel(b.ctx), attempts, reason,
			b.fetcher.unstorableFor(reason, took))
		b.fetcher.countWrites(attempts)
	}
}

// A marker of a value that cannot be stored lives for unstorableLoads times the load, at least
// minUnstorable and at most maxUnstorable. When it ends, one process loads the row under a lease
// again, and finds out whether the value can be stored now; the others wait for that load. So with
// 20, a read of such a key waits for others in one of 20 loads. An invalidation removes the marker.
const (
	unstorableLoads = 20
	minUnstorable   = time.Second
	maxUnstorable   = time.Minute
)

// unstorableFor returns the life of the marker of a value that was loaded in took.
func (f *Fetcher) unstorableFor(reason lease.Reason, took time.Duration) time.Duration {
	life := min(max(unstorableLoads*took, minUnstorable), maxUnstorable)
	if reason == lease.GroupHeld {
		life = min(life, f.cache.ReplicaLag) // the value can be stored soon
	}
	return life
}

func (f *Fetcher) delete(ctx context.Context, rounds []*Round) []error {
	return f.cache.Bus.Delete(ctx, names(rounds), f.hashes(rounds))
}

// hashes returns the stable hashes of the keys of rounds.
func (f *Fetcher) hashes(rounds []*Round) []uint64 {
	hashes := make([]uint64, len(rounds))
	for i, r := range rounds {
		hashes[i] = f.Keys.Hash(r.text)
	}
	return hashes
}

// filling returns the entry for a value.
func (f *Fetcher) filling(r *Round, row source.Row) (lease.Filling, error) {
	e, life, err := f.entry(r, row)
	r.encoded = payload(&e).Len()
	if err == nil {
		f.sizes.Observe(lease.HeadSize + len(e.Groups) + len(e.Key) + len(e.Payload))
	}
	return lease.Filling{Attempt: r.attempt, Entry: e, Life: life}, err
}

// entry returns the entry for the value of a round, in the generation in which its load began, and
// the entry's time to live in Redis.
func (f *Fetcher) entry(r *Round, row source.Row) (e lease.Entry, life time.Duration, err error) {
	ttl := f.ttl(row)
	e = lease.Entry{Null: row.Null, Cost: row.Took, Expiry: f.now(r.slotRange).Add(ttl),
		Generation: r.generation.Number, Keyed: r.nameHashed}
	if e.Keyed {
		e.Key = r.text
	}
	if f.Groups.InUse() {
		e.Grouped, e.Known, e.Groups = true, r.known, r.groups
	}
	if !row.Null {
		var p codec.Payload
		p, err = f.Codec.Encode(row.Value)
		e.Codec, e.Compressed, e.Payload = uint8(p.Codec), p.Compressed, p.Bytes
	}
	return e, f.hardLife(ttl, row.Null), err
}

// put stores the values that rounds have loaded. If Redis is down for a key, it does not try, so
// that no caller waits for a store that would fail.
func (b *batch) put(rounds []*Round, all []*lease.Filling) {
	sent := make([]*lease.Filling, 0, len(all))
	for i, filling := range all {
		err := b.fetcher.cache.Conn.Down(int(rounds[i].slotRange))
		if err != nil && !b.refresh {
			filling.Err = err // finishStore counts it
			continue
		}
		sent = append(sent, filling)
	}
	if len(sent) > 0 {
		b.fetcher.cache.Store.Fill(context.WithoutCancel(b.ctx), sent)
	}
}

// finishStore continues a round after an attempt to store its value.
func (b *batch) finishStore(r *Round, filling *lease.Filling) {
	switch {
	case filling.Err != nil && b.refresh: // the caller wants the value to be stored
		r.storeFailed = true
		b.fetcher.CountWrite(filling.Err)
		r.Err, r.step = fault.OfRedis(filling.Err), ended
	case filling.Err != nil: // the value may be outdated; it was current when its load began
		r.storeFailed = true
		b.fetcher.CountWrite(filling.Err)
		b.endUnvalidated(r)
	case filling.Stored:
		left := filling.Entry.Expiry.Sub(b.fetcher.now(r.slotRange))
		b.fetcher.putInMemory(r, left, filling.Entry.Cost, b.refresh)
		r.step = ended
	default:
		b.fetcher.Counters.Refused.Add(1)
		if r.refusals++; r.refusals > MaxRefusals {
			b.endUnvalidated(r) // the load began after the callers had asked
			return
		}
		b.fetcher.prepareLookup(r)
	}
}

// finishWithoutLease ends a round whose value was loaded without a lease. A cache without Redis
// puts the value in memory. If Redis is down, memory keeps it for a limited time. A value of a key
// on hold is not put in memory in either case.
func (b *batch) finishWithoutLease(r *Round, row source.Row) {
	r.Value, r.Null = row.Value, row.Null
	switch {
	case r.verdict == filterAudited && row.Null: // the filter was right
		r.step = ended
	case r.verdict == filterAudited:
		b.endUnvalidated(r)
	case r.bypass:
		b.fetcher.Counters.Bypassed.Add(1)
		b.endUnvalidated(r)
	case r.unstorable != 0:
		b.fetcher.countUnstorable(r.unstorable)
		b.endUnvalidated(r)
	case r.notCached || r.groupsHeld:
		b.fetcher.Counters.Held.Add(1)
		b.endUnvalidated(r)
	case b.fetcher.cache.Store != nil:
		b.fetcher.keepWhileDown(r, row)
		b.endUnvalidated(r)
	default:
		b.fetcher.putInMemory(r, b.fetcher.ttl(row), row.Took, b.refresh)
		r.step = ended
	}
}

// countUnstorable counts a value that was not stored because a marker says that it cannot be.
func (f *Fetcher) countUnstorable(reason lease.Reason) {
	switch reason {
	case lease.TooLarge:
		f.Counters.TooLarge.Add(1)
	case lease.NotCarried:
		f.Counters.NotCarried.Add(1)
	case lease.GroupHeld:
		f.Counters.Held.Add(1)
	}
}

// endUnvalidated ends a round with a value that Redis has not confirmed. The value is not older
// than the beginning of its load.
func (b *batch) endUnvalidated(r *Round) {
	b.fetcher.Counters.Unvalidated.Add(1)
	if b.refresh && b.fetcher.Memory != nil {
		b.fetcher.Memory.Invalidate(r.hash, r.sharedHash) // the copy in memory is older
	}
	r.Unvalidated, r.step = true, ended
}

// failAll ends rounds with their errors, or with err. It stores failure markers in Redis, so that
// other processes do not retry immediately, unless the database was not asked.
func (b *batch) failAll(rounds []*Round, err error) {
	var leased, spared []*lease.Attempt
	for _, r := range rounds {
		r.Value, r.Null, r.step = nil, false, ended
		r.Err = cmp.Or(err, r.Err)
		switch {
		case r.notAttempted:
			if !r.withoutLease {
				spared = append(spared, r.attempt)
			}
		case r.withoutLease:
			b.fetcher.noteFailure(r, r.Err, true)
		case !b.mayWrite(r):
			b.fetcher.noteFailure(r, r.Err, true)
		default:
			b.fetcher.noteFailure(r, r.Err, false)
			leased = append(leased, r.attempt)
		}
	}
	b.release(spared)
	if len(leased) > 0 {
		b.fetcher.cache.Store.Fail(context.WithoutCancel(b.ctx), leased, b.fetcher.ErrorTTL)
		b.fetcher.countWrites(leased)
		b.noteUnmarked(rounds)
	}
}

// noteFailure records that the load of a key has failed. local means that Redis has no failure
// marker.
func (f *Fetcher) noteFailure(r *Round, cause error, local bool) {
	if !r.bypass {
		f.Source.Failures.Add(r.text, r.failureEpoch, cause, local)
	}
}

// noteUnmarked records failures whose markers could not be stored in Redis.
func (b *batch) noteUnmarked(rounds []*Round) {
	for _, r := range rounds {
		if !r.withoutLease && r.attempt.Err != nil {
			b.fetcher.noteFailure(r, r.Err, true)
		}
	}
}

// forgetFailure forgets the recent failure of a key that was loaded without an error.
func (f *Fetcher) forgetFailure(r *Round, err error) {
	if err == nil && !r.bypass {
		f.Source.Failures.Forget(r.text)
	}
}

// mayWrite reports whether a write of a round, a marker or a release, can be sent to Redis. If
// not, mayWrite counts a write error.
func (b *batch) mayWrite(r *Round) bool {
	err := b.fetcher.cache.Conn.Down(int(r.slotRange))
	if b.refresh || err == nil {
		return true
	}
	b.fetcher.CountWrite(err)
	return false
}
