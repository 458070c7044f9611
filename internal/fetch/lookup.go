package fetch

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// When Redis is known to be down (see conn.Down), no read waits for it: neither lookups nor the
// writes of reads are sent. Invalidate and Refresh always try, because their callers need the
// result.

// lookUpInMemory looks up rounds in the memory tier of a cache that has no Redis. A stale value
// is served while it is loaded again.
func (f *Fetcher) lookUpInMemory(rounds []*Round) {
	if f.Memory == nil || f.cache.Store != nil {
		return
	}
	for _, r := range rounds {
		if r.step != toLoad && r.step != toLookUp || r.bypass || r.mode == Fresh {
			continue
		}
		r.step = toLoad
		ago, expired, ok := f.fillFromStale(r)
		r.needsPrimary = r.needsPrimary || expired
		if !ok {
			continue
		}
		if ago < 0 { // another round has loaded it
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

// lookUp reads the entries of the keys at step toLookUp.
func (b *batch) lookUp() {
	b.skipRedis(toLookUp)
	rounds := atStep(b.open, toLookUp)
	if len(rounds) == 0 {
		return
	}
	switch {
	case b.fetcher.cache.Store == nil:
		b.fetcher.lookUpInMemory(rounds)
	case b.fetcher.leaseFirst(rounds):
		return
	default:
		b.fetcher.cache.Store.Read(b.ctx, &b.fetcher.sizes, names(rounds),
			func(i int, state *lease.State, err error) { b.applyLookup(rounds[i], state, err) })
		b.fetcher.misses.observe(len(rounds), len(atStep(rounds, toLease)))
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

// skipRedis continues the rounds at this step without Redis, if Redis is down.
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

// A lookup that also requests the lease is a script, which keeps Redis and this process busy for
// longer than a plain read does. Measured with 100 keys of 300 bytes: 1.8 µs per key in Redis; with
// an entry of 50 KB: 2.2 ns per byte, because the script copies the entry.
const (
	leaseFirstCost    = 10 * time.Microsecond // of a script
	leaseFirstPerKey  = 5 * time.Microsecond
	leaseFirstPerByte = 2.0 // nanoseconds
)

// leaseFirst moves rounds to a lookup that also requests the leases. Then a miss needs two trips
// instead of three. This pays where a trip to Redis takes long, and reads often miss. leaseFirst
// reports whether it has moved the rounds.
func (f *Fetcher) leaseFirst(rounds []*Round) bool {
	if n := len(rounds); !f.leaseFirstPays(n) || n > MaxCalls*f.Chunk || !f.sizes.FitShared(n) {
		return false // too little to gain, too many leases, or too many bytes
	}
	for _, r := range rounds {
		r.step = toTakeFirst
	}
	return true
}

// leaseFirstPays reports whether a lookup of n keys that also requests leases probably saves more
// time than it takes.
func (f *Fetcher) leaseFirstPays(n int) bool {
	if f.cache.SlowTrip <= 0 {
		return f.cache.SlowTrip < 0
	}
	trip := f.cache.Store.TripTime()
	if trip < f.cache.SlowTrip {
		return false
	}
	hits := 1 - f.misses.share()
	saved := float64(trip) * (1 - math.Pow(hits, float64(n)))
	cost := float64(leaseFirstCost+time.Duration(n)*leaseFirstPerKey) + hits*float64(f.sizes.Total(n))*leaseFirstPerByte
	return saved > cost
}

// takeFirst looks up keys and requests the leases of those that hold nothing, in one trip.
func (b *batch) takeFirst() {
	b.skipRedis(toTakeFirst)
	rounds := atStep(b.open, toTakeFirst)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), MaxCalls*b.fetcher.Chunk)] // as in takeLeases
	attempts := b.attempts(rounds)
	ctx, end := b.fetcher.observe(b.ctx, OpLease, len(attempts))
	bound, cancel := context.WithTimeout(ctx, b.fetcher.cache.ReadTimeout) // as the lookup has
	wait := b.readGroups(bound, rounds)
	b.fetcher.cache.Store.TakeFirst(ctx, &b.fetcher.sizes, attempts)
	wait()
	cancel()
	end(attempts[0].Err)
	missed := 0
	for i, r := range rounds {
		if attempts[i].Owns() {
			missed++
		} else if attempts[i].Err == nil && attempts[i].State.Kind == lease.Stored {
			b.fetcher.sizes.Observe(len(attempts[i].State.Raw))
		}
		b.applyLookup(r, &attempts[i].State, attempts[i].Err)
	}
	b.fetcher.misses.observe(len(rounds), missed)
	b.fetcher.startDueRefreshes(rounds)
	b.complete(rounds)
}

// takeLeases requests leases for keys that hold nothing, or nothing readable. Redis grants a
// lease only if that has not changed since the lookup: this is the second check of double-checked
// locking.
func (b *batch) takeLeases() {
	b.skipRedis(toLease)
	rounds := atStep(b.open, toLease)
	if len(rounds) == 0 {
		return
	}
	// Request no more leases than there are concurrent loads, because other processes wait for a
	// leased key.
	rounds = rounds[:min(len(rounds), MaxCalls*b.fetcher.Chunk)]
	attempts := b.attempts(rounds)
	ctx, end := b.fetcher.observe(b.ctx, OpLease, len(attempts))
	wait := b.readGroups(ctx, rounds)
	b.fetcher.cache.Store.Take(ctx, attempts)
	wait()
	end(attempts[0].Err)
	for i, r := range rounds {
		b.applyLookup(r, &attempts[i].State, attempts[i].Err)
	}
	b.fetcher.startDueRefreshes(rounds)
	b.complete(rounds)
	for _, r := range atStep(rounds, toLease) {
		r.step = toLookUp // the key holds other bytes now, which are not readable either
	}
}

// claim requests the leases of keys to refresh, regardless of what the keys hold.
func (b *batch) claim() {
	rounds := atStep(b.open, toLookUp)
	if len(rounds) == 0 {
		return
	}
	rounds = rounds[:min(len(rounds), MaxCalls*b.fetcher.Chunk)] // as in takeLeases
	wait := b.readGroups(b.ctx, rounds)
	b.fetcher.cache.Store.Claim(b.ctx, b.attempts(rounds))
	wait()
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

// fetchRest reads the rest of long entries. If the batch has other rounds, the long entries are
// read in a separate batch, so that neither waits for the other.
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

// fetchWhole reads the rest of an entry of which only the beginning was read. If the entry is
// longer than any that the loader stores, its state becomes Unknown.
func (f *Fetcher) fetchWhole(ctx context.Context, r *Round, state *lease.State) (err error) {
	if state.Kind != lease.Stored || !state.Long {
		return nil
	}
	limit := lease.HeadSize + lease.MaxGroupsSize + f.MaxValueBytes
	if r.nameHashed {
		limit += len(r.text)
	}
	*state, err = f.cache.Store.Fetch(ctx, r.name, state.Raw, limit)
	return err
}

func (b *batch) applyLookup(r *Round, state *lease.State, err error) {
	if b.ctx.Err() == nil { // after that, a failed command only means that the callers have left
		b.fetcher.applyLookup(r, state, err)
	}
}

// applyLookup continues a round after a lookup in Redis. state is the state of the key. A non-nil
// err means that Redis could not be asked.
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
	now := f.now(r.slotRange)
	found, unread := f.classify(r, state, now)
	if found == foundFresh || found == foundStale || found == foundFailing {
		if r.mode == Warming {
			f.applyWarming(r, &state.Entry, found, now)
			return
		}
		f.noteDueRefresh(r, &state.Entry, found, now)
	}
	f.act(r, found, f.readState(r, found), state, unread)
}

// classify returns what a key holds. If that is a usable value, classify puts it in the round.
func (f *Fetcher) classify(r *Round, state *lease.State, now time.Time) (found finding, unread error) {
	if state.Kind != lease.Stored {
		return findingOf[state.Kind], nil
	}
	switch e := &state.Entry; {
	case e.Generation > r.generation.Number:
		return foundNewGeneration, nil
	case e.Generation != r.generation.Number:
		return foundOutdated, nil
	case e.Grouped && !f.Groups.InUse(): // another process uses groups: read which are invalidated, and look again
		f.Groups.Discover()
		return foundNewGeneration, nil
	case f.isOutdated(r.slotRange, e):
		return foundOutdated, nil
	}
	if state.Long {
		return foundPartial, nil
	}
	e := &state.Entry
	expired := f.isExpired(r.slotRange, e)
	// Without its Expiry, the age of an entry is unknown. An entry whose hard life has ended, and
	// which only a claim keeps in Redis, stays too old.
	if expired && f.classifyAge(e, now) != foundTooOld {
		e.Expiry = time.UnixMilli(0) // as Expire stores it; too old for a loader without stale values
	}
	r.needsPrimary = expired || e.Expiry.UnixMilli() == 0
	if unread = f.decode(r, e); unread != nil {
		return foundUnreadable, unread
	}
	found = f.classifyAge(e, now)
	switch taken := e.Taken(now); {
	case found == foundTooOld && taken && e.Failed():
		found = foundFailure
	case found == foundTooOld && taken: // the claim is like a lease now
		found = foundOtherLease
	}
	return found, nil
}

// decode puts the value of an entry in the round. It changes nothing if it returns an error: the
// entry is of another key, or cannot be decoded. (JSON of a different struct may decode without an
// error; LoaderOptions.Version prevents that.)
func (f *Fetcher) decode(r *Round, e *lease.Entry) error {
	value, item, err := f.decodeEntry(r, e)
	if err == nil {
		r.Value, r.item, r.Null, r.encoded = value, item, e.Null, payload(e).Len()
		r.known, r.groups = e.Known, e.Groups
	}
	return err
}

// decodeEntry returns the value of an entry that was found under a round's name, if the entry is
// of the round's key, and the item that contains the value: see Codec.
func (f *Fetcher) decodeEntry(r *Round, e *lease.Entry) (value any, item *memory.Header, err error) {
	switch {
	case !e.Unkey(r.text, r.nameHashed):
		return nil, nil, errOtherKey
	case e.Null:
		return nil, nil, nil
	}
	return f.Codec.Decode(payload(e))
}

// errOtherKey is the error of an entry that was found under a key's name and is of another key.
var errOtherKey = errors.New("the entry is of another key")

// skew is the difference between the clocks of two processes that is tolerated without a load.
const skew = 5 * time.Second

// classifyAge returns whether an entry is fresh, stale or too old. An entry may be older than this
// loader's options allow, if a process with other options has stored it. It may also be older
// because it is claimed: a claim extends its life in Redis, but not the time for which it may be
// served. That time is read from the entry itself.
func (f *Fetcher) classifyAge(e *lease.Entry, now time.Time) finding {
	left, hard := e.Expiry.Sub(now), f.staleFor(e.Null)
	taken := e.Taken(now)
	switch expired := e.Expiry.UnixMilli() == 0 && hard > 0; {
	// Expire has ended the TTL; only Redis knows the end of the hard life
	case e.Claimed && -left >= hard && !expired:
		return foundTooOld
	case -left-skew > hard && !expired:
		return foundTooOld
	case left > 0 || hard == 0: // without a stale life Redis is about to delete it
		return foundFresh
	case taken && e.Failed():
		return foundFailing
	default:
		return foundStale
	}
}

// noteDueRefresh records in the round whether the entry must be refreshed in the background. found
// is the result of classifyAge.
func (f *Fetcher) noteDueRefresh(r *Round, e *lease.Entry, found finding, now time.Time) {
	left := e.Expiry.Sub(now)
	fresh := found == foundFresh
	if !e.Taken(now) && (!fresh || left > 0 && f.drawEarlyRefresh(left, f.delta(e.Cost))) {
		r.stamp, r.stampKnown, r.due, r.early = e.Stamp, true, true, fresh
	}
}

// applyWarming ends a round of Warm that has found a value. It sets EndsSoon if less than half of
// the value's TTL is left and no process is refreshing it.
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

// payload returns the encoded value of an entry.
func payload(e *lease.Entry) codec.Payload {
	return codec.Payload{Codec: codec.ID(e.Codec), Compressed: e.Compressed, Bytes: e.Payload}
}
