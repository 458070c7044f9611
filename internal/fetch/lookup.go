package fetch

import (
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// Rounds while Redis is out of reach. Once that has been noticed (see conn.Down) nobody waits for
// Redis: reads are not sent, nor is what reads would leave there. Invalidate and Refresh always
// try: their callers want to know.

// lookInside looks at the memory tier of a cache that has no Redis: what has become stale there is
// served while it is loaded again.
func (f *Fetcher) lookUpInMemory(rounds []*Round) {
	if f.Memory == nil || f.cache.Store != nil {
		return
	}
	for _, r := range rounds {
		if r.step != toLoad && r.step != toLookUp || r.bypass || r.how == Fresh {
			continue
		}
		r.step = toLoad
		ago, expired, ok := f.fillFromStale(r)
		r.needsPrimary = r.needsPrimary || expired
		if !ok {
			continue
		}
		if ago < 0 { // it has been loaded meanwhile
			r.Hit, r.step = true, ended
			continue
		}
		r.due = true
		if decide(foundStale, f.readState(r, foundStale)) == doWaitForFresh {
			r.forFresh, r.step = true, toWait
			continue
		}
		f.serveStale(r)
		r.Hit = true
	}
	f.startDueRefreshes(rounds)
}

// look reads what the keys hold.
func (b *batch) lookUp() {
	b.skipRedis(toLookUp)
	rounds := atStep(b.open, toLookUp)
	if len(rounds) == 0 {
		return
	}
	if b.fetcher.cache.Store == nil {
		b.fetcher.lookUpInMemory(rounds)
	} else {
		b.fetcher.cache.Store.Read(b.ctx, &b.fetcher.sizes, names(rounds), func(i int, state *lease.State, err error) { b.applyLookup(rounds[i], state, err) })
		b.fetcher.startDueRefreshes(rounds)
	}
	b.complete(rounds)
}

func (b *batch) skipRedis(s step) {
	if !b.refresh {
		b.fetcher.skipRedis(b.open, s)
		b.complete(b.open)
	}
}

// skipRedis ends the asking of rounds that are at this step, where Redis is out of reach.
func (f *Fetcher) skipRedis(rounds []*Round, s step) {
	if f.cache.Conn == nil {
		return
	}
	for _, r := range rounds {
		if r.step != s {
			continue
		}
		if err := f.cache.Conn.Down(int(r.slotRange)); err != nil {
			f.withoutRedis(r, err)
		}
	}
}

// take asks for leases, where there is nothing, or nothing that can be read. A lease is given only
// if that is still so: this is the second check of double-checked locking.
func (b *batch) takeLeases() {
	b.skipRedis(toLease)
	rounds := atStep(b.open, toLease)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), MaxCalls*b.fetcher.Chunk)] // no more than are loaded at once: the fleet waits for a leased key
	as := b.attempts(rounds)
	ctx, end := b.fetcher.observe(b.ctx, OpLease, len(as))
	b.fetcher.cache.Store.Take(ctx, as)
	end(as[0].Err)
	for i, r := range rounds {
		b.applyLookup(r, &as[i].State, as[i].Err)
	}
	b.fetcher.startDueRefreshes(rounds)
	b.complete(rounds)
	for _, r := range atStep(rounds, toLease) {
		r.step = toLookUp // it has changed meanwhile, and can still not be read
	}
}

// claim asks for the leases of keys that are to be refreshed, whatever they hold.
func (b *batch) claim() {
	rounds := atStep(b.open, toLookUp)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), MaxCalls*b.fetcher.Chunk)] // as in take
	b.fetcher.cache.Store.Claim(b.ctx, b.attempts(rounds))
	if b.ctx.Err() != nil {
		return
	}
	for _, r := range rounds {
		found := findingOf[r.attempt.State.Kind]
		if r.attempt.Err != nil {
			b.fetcher.count(r.attempt.Err)
			found = foundNoRedis
		}
		b.fetcher.act(r, found, readState{Refresh: true, Background: b.background}, nil, r.attempt.Err)
	}
}

// fetchRest reads the rest of long entries, by a way of its own: if there are other rounds, by
// themselves, for neither is to wait for the other.
func (b *batch) fetchRest() {
	b.skipRedis(toFetch)
	rounds := atStep(b.open, toFetch)
	switch {
	case len(rounds) == 0:
		return
	case len(rounds) < len(b.open):
		b.fork(rounds)
		return
	}
	InParallel(rounds, MaxCalls, func(r *Round, _ func()) {
		returned := false
		defer func() {
			if !returned { // a codec called runtime.Goexit
				r.Err, r.step = b.fetcher.cache.Caught(recover()), ended
			}
		}()
		state := lease.State{Kind: lease.Stored, Long: true, Raw: r.beginning}
		r.beginning = nil
		err := b.fetcher.fetchWhole(b.ctx, r, &state)
		b.applyLookup(r, &state, err)
		returned = true
	})
	b.fetcher.startDueRefreshes(rounds)
	b.complete(rounds)
}

// whole reads the rest of an entry of which only the beginning was read. One that is longer than
// the loader stores is Unknown then.
func (f *Fetcher) fetchWhole(ctx context.Context, r *Round, state *lease.State) (err error) {
	if state.Kind != lease.Stored || !state.Long {
		return nil
	}
	limit := lease.HeadSize + f.MaxValueBytes
	if r.nameHashed {
		limit += len(r.text)
	}
	*state, err = f.cache.Store.Fetch(ctx, r.name, state.Raw, limit)
	return err
}

func (b *batch) applyLookup(r *Round, state *lease.State, err error) {
	if b.ctx.Err() == nil { // else the callers have left: that is why, if a command has failed
		b.fetcher.applyLookup(r, state, err)
	}
}

// settle continues a round after a lookup in Redis. state is what the key holds; with an err Redis
// could not be asked.
func (f *Fetcher) applyLookup(r *Round, state *lease.State, err error) {
	r.forFresh = false
	if r.attempt != nil {
		r.attempt.Adopt(state)
	}
	if err != nil {
		f.count(err)
		f.withoutRedis(r, err)
		return
	}
	now := time.Now()
	found, unread := f.classify(r, state, now)
	if found == foundFresh || found == foundStale || found == foundFailing {
		if r.how == Warming {
			f.applyWarming(r, &state.Entry, found, now)
			return
		}
		f.noteDueRefresh(r, &state.Entry, found, now)
	}
	f.act(r, found, f.readState(r, found), state, unread)
}

// classify returns what a key holds. It puts a value that counts into the round.
func (f *Fetcher) classify(r *Round, state *lease.State, now time.Time) (found finding, unread error) {
	if state.Kind != lease.Stored {
		return findingOf[state.Kind], nil
	}
	switch e := &state.Entry; {
	case e.Generation > r.generation.Number:
		return foundNewGeneration, nil
	case e.Generation != r.generation.Number:
		return foundOldGeneration, nil
	case state.Long:
		return foundPartial, nil
	}
	r.needsPrimary = state.Entry.Expiry.UnixMilli() == 0
	if unread = f.decode(r, &state.Entry); unread != nil {
		return foundUnreadable, unread
	}
	return f.classifyAge(&state.Entry, now), nil
}

// decode takes a round's value out of an entry. With an error nothing has changed: the entry is not
// the key's, or cannot be decoded. (JSON of another struct can: that is what LoaderOptions.Version
// is for.)
func (f *Fetcher) decode(r *Round, e *lease.Entry) error {
	value, err := f.decodeEntry(r, e)
	if err == nil {
		r.Value, r.Null, r.encoded = value, e.Null, payload(e).Len()
	}
	return err
}

// content is the value of an entry that stands under a round's key, if it is that key's and can be
// decoded.
func (f *Fetcher) decodeEntry(r *Round, e *lease.Entry) (value any, err error) {
	switch {
	case !e.Unkey(r.text, r.nameHashed):
		return value, errOtherKey
	case e.Null:
		return value, nil
	}
	return f.Codec.Decode(payload(e))
}

// errOtherKey is why an entry is not read that stands under a key's name, and is another's.
var errOtherKey = errors.New("it is another key's")

// skew is how far the clocks of processes may be apart before that costs a load.
const skew = 5 * time.Second

// age tells in which of its lives an entry is. One may be older than this loader's options allow,
// if another process with others has stored it.
func (f *Fetcher) classifyAge(e *lease.Entry, now time.Time) finding {
	left, hard := e.Expiry.Sub(now), f.staleFor(e.Null)
	taken := e.Taken(now)
	switch expired := e.Expiry.UnixMilli() == 0 && hard > 0; { // by Expire: its hard end is Redis's to know
	case -left-skew > hard && !taken && !expired:
		return foundTooOld
	case left > 0 || hard == 0: // without a stale life it is about to go by itself
		return foundFresh
	case taken && e.Failed():
		return foundFailing
	default:
		return foundStale
	}
}

// noteRefresh notes whether an entry of that age is to be loaded anew in the background.
func (f *Fetcher) noteDueRefresh(r *Round, e *lease.Entry, found finding, now time.Time) {
	left := e.Expiry.Sub(now)
	fresh := found == foundFresh
	if !e.Taken(now) && (!fresh || left > 0 && f.drawEarlyRefresh(left, f.delta(e.Cost))) {
		r.stamp, r.stampKnown, r.due, r.early = e.Stamp, true, true, fresh
	}
}

// settleWarming ends a round of Warm that has found a value. EndsSoon is set if less than half of
// the value's TTL is left, and no process is loading it anew.
func (f *Fetcher) applyWarming(r *Round, e *lease.Entry, found finding, now time.Time) {
	ttl := f.TTL
	if e.Null {
		ttl = f.NullTTL
	}
	ends, taken := found != foundFresh || e.Expiry.Sub(now) < ttl/2, e.Taken(now)
	r.Hit, r.step = true, ended
	switch {
	case ends && taken && e.Failed():
		r.Err = f.Source.Failures.Err(r.text)
	case ends && !taken:
		r.EndsSoon = true
	default:
		f.putEntryInMemory(r, e)
	}
}
