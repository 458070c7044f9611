package fetch

import (
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// First is the first look at Redis of a caller that shares its rounds with nobody, on its own
// goroutine: hits need no other, unless the loader's generation is in doubt. Rounds that are not
// over afterwards go on in Read, in a flight.
func (l *Fetcher) First(ctx context.Context, how How, rounds []*Round) {
	how.of(rounds)
	if l.filter.Filter == nil {
		l.first(ctx, rounds)
		return
	}
	if l.checkFilterNow(rounds) {
		l.first(ctx, rounds)
	}
	l.countFilter(at(rounds, over))
}

func (l *Fetcher) first(ctx context.Context, rounds []*Round) {
	for _, r := range rounds {
		l.begin(r)
	}
	l.lookInside(rounds)
	l.skipRedis(rounds, toLook)
	l.skipRedis(rounds, toLearn)
	if asked := at(rounds, toLook); len(asked) > 0 {
		l.cache.Store.First(ctx, &l.sizes, names(asked), func(i int, state *lease.State, err error) {
			if err == nil || ctx.Err() == nil {
				l.settle(asked[i], state, err)
			}
		})
		l.refreshDue(asked)
	}
	if ctx.Err() != nil { // nobody waits for the rest
		for _, r := range at(rounds, toLook) {
			l.Counters.Abandoned.Add(1)
			r.Err, r.step = ctx.Err(), over
		}
	}
}

// Read is one flight of reads: all their callers asked before it began.
func (l *Fetcher) Read(ctx context.Context, how How, rounds []*Round, f Flight) {
	how.of(rounds)
	if l.filter.Filter != nil {
		l.checkFilter(ctx, rounds)
	}
	b := l.batchOf(ctx, rounds, f, false)
	l.lookInside(b.open)
	b.run()
}

// Refresh is one flight of refreshes, which load whatever is cached.
func (l *Fetcher) Refresh(ctx context.Context, rounds []*Round, f Flight) {
	l.batchOf(ctx, rounds, f, true).run()
}

// look reads what the keys hold.
func (b *batch) look() {
	b.skipRedis(toLook)
	rounds := at(b.open, toLook)
	if len(rounds) == 0 {
		return
	}
	if b.l.cache.Store == nil {
		b.l.lookInside(rounds)
	} else {
		b.l.cache.Store.Read(b.ctx, &b.l.sizes, names(rounds), func(i int, state *lease.State, err error) { b.settle(rounds[i], state, err) })
		b.l.refreshDue(rounds)
	}
	b.complete(rounds)
}

// take asks for leases, where there is nothing, or nothing that can be read. A lease is given only
// if that is still so: this is the second check of double-checked locking.
func (b *batch) take() {
	b.skipRedis(toTake)
	rounds := at(b.open, toTake)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), MaxCalls*b.l.Chunk)] // no more than are loaded at once: the fleet waits for a leased key
	as := b.attempts(rounds)
	ctx, end := b.l.observe(b.ctx, OpLease, len(as))
	b.l.cache.Store.Take(ctx, as)
	end(as[0].Err)
	for i, r := range rounds {
		b.settle(r, &as[i].State, as[i].Err)
	}
	b.l.refreshDue(rounds)
	b.complete(rounds)
	for _, r := range at(rounds, toTake) {
		r.step = toLook // it has changed meanwhile, and can still not be read
	}
}

// claim asks for the leases of keys that are to be refreshed, whatever they hold.
func (b *batch) claim() {
	rounds := at(b.open, toLook)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), MaxCalls*b.l.Chunk)] // as in take
	b.l.cache.Store.Claim(b.ctx, b.attempts(rounds))
	if b.ctx.Err() != nil {
		return
	}
	for _, r := range rounds {
		b.settleClaim(r, r.attempt.Err)
	}
}

// settleClaim does what follows from a claim, or from err, that Redis could not be asked.
func (b *batch) settleClaim(r *Round, err error) {
	what := kinds[r.attempt.State.Kind]
	if err != nil {
		b.l.count(err)
		what = seenNoAnswer
	}
	switch decide(what, standing{Refresh: true, Background: b.background}) {
	case load:
		r.step = toLoad
		if b.background {
			b.l.countRefresh(r)
		}
	case loadOnHold:
		r.onHold, r.withoutLease, r.step = true, true, toLoad
	case leaveToOthers:
		r.step, r.busy = over, what == seenLease
	case failRedis:
		r.Err, r.step = fault.OfRedis(err), over
	default:
		r.step = toWait
	}
}

// attempts are those of rounds that ask Redis.
func (b *batch) attempts(rounds []*Round) []*lease.Attempt {
	as := make([]*lease.Attempt, len(rounds))
	for i, r := range rounds {
		as[i] = b.l.attempt(r)
		if b.background {
			as[i].For(r.stamp)
		}
		as[i].Young = b.l.young(r)
	}
	return as
}

func (l *Fetcher) attempt(r *Round) *lease.Attempt {
	if r.attempt == nil {
		a := lease.NewAttempt(r.name, l.cache.LeaseTTL)
		r.attempt = &a
	}
	return r.attempt
}

// young is the loader's generation in a round, where that may have begun within ReplicaLag: no
// earlier than this process has learned of it. By its own clock Redis says whether it has, for a
// process that has just started learns of old ones. This bound is for the case that the generation
// is ahead of that clock.
func (l *Fetcher) young(r *Round) uint64 {
	if r.generation == nil || time.Since(r.generation.Since) >= l.cache.ReplicaLag {
		return 0
	}
	return r.generation.Number
}

func (b *batch) settle(r *Round, state *lease.State, err error) {
	if b.ctx.Err() == nil { // else the callers have left: that is why, if a command has failed
		b.l.settle(r, state, err)
	}
}

// settle does what follows from what a key holds, or from err, that Redis could not be asked.
func (l *Fetcher) settle(r *Round, state *lease.State, err error) {
	r.forFresh = false
	if r.attempt != nil {
		r.attempt.Adopt(state)
	}
	if err != nil {
		l.count(err)
		l.withoutRedis(r, err)
		return
	}
	what, unread := l.see(r, state)
	switch decide(what, l.standing(r, what)) {
	case giveValue:
		l.putEntryInMemory(r, &state.Entry)
		r.step = over
		l.countHit(r)
	case giveStale:
		l.giveStale(r)
		l.countHit(r)
	case waitForFresh:
		r.forFresh, r.step = true, toWait
	case fetchRest:
		r.beginning, r.step = state.Raw, toFetch
	case askGeneration: // another process knows of an InvalidateAll that this one has not heard of
		r.outdated = true
		l.again(r)
	case replace:
		l.replace(r, state, what, unread)
	case takeLease:
		l.attempt(r).State = *state // for Take
		r.step = toTake
	case load:
		r.waits(nil)
		r.step = toLoad
	case loadOnHold:
		r.onHold, r.withoutLease, r.step = true, true, toLoad
	case fail:
		l.Counters.FailedByMark.Add(1)
		r.Err, r.step = l.Source.Failures.Err(r.text), over
	case waitForLoad:
		r.step = toWait
	}
}

// replace has an entry be loaded anew that is there and does not count.
func (l *Fetcher) replace(r *Round, state *lease.State, what seen, unread error) {
	if what == seenUnreadable {
		l.Counters.Undecodable.Add(1)
		l.cache.Warn("an entry in Redis is unreadable, and is replaced", l.Name, unread)
	} else {
		l.Counters.Outdated.Add(1)
	}
	l.attempt(r).State = lease.State{Kind: lease.Unknown, Raw: state.Raw} // for Take
	r.step = toTake
}

// see tells what a key holds, and takes a value that counts into the round, with what is to be done
// about its end.
func (l *Fetcher) see(r *Round, state *lease.State) (what seen, unread error) {
	now := time.Now()
	if what, unread = l.classify(r, state, now); what == seenFresh || what == seenStale || what == seenFailing {
		l.noteRefresh(r, &state.Entry, what, now)
	}
	return what, unread
}

// classify tells what a key holds, and takes a value that counts into the round.
func (l *Fetcher) classify(r *Round, state *lease.State, now time.Time) (what seen, unread error) {
	if state.Kind != lease.Stored {
		return kinds[state.Kind], nil
	}
	switch e := &state.Entry; {
	case e.Generation > r.generation.Number:
		return seenNewer, nil
	case e.Generation != r.generation.Number:
		return seenOlder, nil
	case state.Long:
		return seenBeginning, nil
	}
	r.needsPrimary = state.Entry.Expiry.UnixMilli() == 0
	if unread = l.decode(r, &state.Entry); unread != nil {
		return seenUnreadable, unread
	}
	return l.age(&state.Entry, now), nil
}

// standing is what a read has come to that has seen so much.
func (l *Fetcher) standing(r *Round, what seen) standing {
	return standing{
		AskedAgain:    r.outdated,
		WaitsForFresh: what == seenStale && l.waitsForFresh(r),
		HasStale:      r.softDeadline > 0 && r.refusals == 0,
		Down:          l.RedisDown,
	}
}

// decode takes a round's value out of an entry. With an error nothing has changed: the entry is not
// the key's, or cannot be decoded. (JSON of another struct can: that is what LoaderOptions.Version
// is for.)
func (l *Fetcher) decode(r *Round, e *lease.Entry) error {
	value, err := l.content(r, e)
	if err == nil {
		r.Value, r.Null, r.encoded = value, e.Null, payload(e).Len()
	}
	return err
}

// payload returns the payload of an entry.
func payload(e *lease.Entry) codec.Payload {
	return codec.Payload{Codec: codec.ID(e.Codec), Compressed: e.Compressed, Bytes: e.Payload}
}

// content is the value of an entry that stands under a round's key, if it is that key's and can be
// decoded.
func (l *Fetcher) content(r *Round, e *lease.Entry) (value any, err error) {
	switch {
	case !e.Unkey(r.text, r.hashed):
		return value, errOtherKey
	case e.Null:
		return value, nil
	}
	return l.Codec.Decode(payload(e))
}

// errOtherKey is why an entry is not read that stands under a key's name, and is another's.
var errOtherKey = errors.New("it is another key's")
