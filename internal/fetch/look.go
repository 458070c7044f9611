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
func (l *Fetcher) lookInside(rounds []*Round) {
	if l.Memory == nil || l.cache.Store != nil {
		return
	}
	for _, r := range rounds {
		if r.step != toLoad && r.step != toLook || r.bypass || r.how == Fresh {
			continue
		}
		r.step = toLoad
		ago, expired, ok := l.past(r)
		r.needsPrimary = r.needsPrimary || expired
		if !ok {
			continue
		}
		if ago < 0 { // it has been loaded meanwhile
			r.Hit, r.step = true, over
			continue
		}
		r.renew = true
		if decide(seenStale, l.standing(r, seenStale)) == waitForFresh {
			r.forFresh, r.step = true, toWait
			continue
		}
		l.giveStale(r)
		r.Hit = true
	}
	l.refreshDue(rounds)
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

func (b *batch) skipRedis(s step) {
	if !b.refresh {
		b.l.skipRedis(b.open, s)
		b.complete(b.open)
	}
}

// skipRedis ends the asking of rounds that are at this step, where Redis is out of reach.
func (l *Fetcher) skipRedis(rounds []*Round, s step) {
	if l.cache.Conn == nil {
		return
	}
	for _, r := range rounds {
		if r.step != s {
			continue
		}
		if err := l.cache.Conn.Down(int(r.slotRange)); err != nil {
			l.withoutRedis(r, err)
		}
	}
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
		what := kinds[r.attempt.State.Kind]
		if r.attempt.Err != nil {
			b.l.count(r.attempt.Err)
			what = seenNoAnswer
		}
		b.l.act(r, what, standing{Refresh: true, Background: b.background}, nil, r.attempt.Err)
	}
}

// fetchRest reads the rest of long entries, by a way of its own: if there are other rounds, by
// themselves, for neither is to wait for the other.
func (b *batch) fetchRest() {
	b.skipRedis(toFetch)
	rounds := at(b.open, toFetch)
	switch {
	case len(rounds) == 0:
		return
	case len(rounds) < len(b.open):
		b.fork(rounds)
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

func (b *batch) settle(r *Round, state *lease.State, err error) {
	if b.ctx.Err() == nil { // else the callers have left: that is why, if a command has failed
		b.l.settle(r, state, err)
	}
}

// settle continues a round after a lookup in Redis. state is what the key holds; with an err Redis
// could not be asked.
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
	now := time.Now()
	what, unread := l.classify(r, state, now)
	if what == seenFresh || what == seenStale || what == seenFailing {
		if r.how == Warming {
			l.settleWarming(r, &state.Entry, what, now)
			return
		}
		l.noteRefresh(r, &state.Entry, what, now)
	}
	l.act(r, what, l.standing(r, what), state, unread)
}

// classify returns what a key holds. It puts a value that counts into the round.
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

// skew is how far the clocks of processes may be apart before that costs a load.
const skew = 5 * time.Second

// age tells in which of its lives an entry is. One may be older than this loader's options allow,
// if another process with others has stored it.
func (l *Fetcher) age(e *lease.Entry, now time.Time) seen {
	left, hard := e.Expiry.Sub(now), l.staleFor(e.Null)
	taken := e.Taken(now)
	switch expired := e.Expiry.UnixMilli() == 0 && hard > 0; { // by Expire: its hard end is Redis's to know
	case -left-skew > hard && !taken && !expired:
		return seenOutlived
	case left > 0 || hard == 0: // without a stale life it is about to go by itself
		return seenFresh
	case taken && e.Failed():
		return seenFailing
	default:
		return seenStale
	}
}

// noteRefresh notes whether an entry of that age is to be loaded anew in the background.
func (l *Fetcher) noteRefresh(r *Round, e *lease.Entry, what seen, now time.Time) {
	left := e.Expiry.Sub(now)
	fresh := what == seenFresh
	if !e.Taken(now) && (!fresh || left > 0 && l.due(left, l.delta(e.Cost))) {
		r.stamp, r.known, r.renew, r.early = e.Stamp, true, true, fresh
	}
}

// settleWarming ends a round of Warm that has found a value. EndsSoon is set if less than half of
// the value's TTL is left, and no process is loading it anew.
func (l *Fetcher) settleWarming(r *Round, e *lease.Entry, what seen, now time.Time) {
	ttl := l.TTL
	if e.Null {
		ttl = l.NullTTL
	}
	ends, taken := what != seenFresh || e.Expiry.Sub(now) < ttl/2, e.Taken(now)
	r.Hit, r.step = true, over
	switch {
	case ends && taken && e.Failed():
		r.Err = l.Source.Failures.Err(r.text)
	case ends && !taken:
		r.EndsSoon = true
	default:
		l.putEntryInMemory(r, e)
	}
}
