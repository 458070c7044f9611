package fetch

import (
	"math"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/source"
)

func (l *Fetcher) countHit(r *Round) {
	if r.step == over {
		r.Hit = true
		l.Counters.RedisHits.Add(1)
		if r.Null {
			l.Counters.NullHits.Add(1)
		}
	}
}

// giveStale gives out a stale value.
func (l *Fetcher) giveStale(r *Round) {
	l.Counters.Stale.Add(1)
	r.step = over
}

// Past is what memory holds of a key within its hard life, trusted or not, and how long ago its TTL
// has ended.
func (l *Fetcher) Past(r *Round) (item Item, ago time.Duration, ok bool) {
	if l.Memory == nil {
		return Item{}, 0, false
	}
	item, ago, ok = l.Items.Past(r)
	return item, ago, ok && (ago < l.staleFor(item.Null))
}

// fromMemory answers a round by what memory holds, trusted or not, within its hard life.
func (l *Fetcher) fromMemory(r *Round) bool {
	if r.how == Fresh {
		return false
	}
	item, _, ok := l.Past(r)
	if ok {
		r.Value, r.Null, r.Unvalidated = item.Value, item.Null, true
	}
	return ok
}

// kept answers a round that would load without Redis by what another has loaded and memory keeps.
func (l *Fetcher) kept(r *Round) bool {
	if l.Memory == nil || l.cache.Store == nil || r.bypass || r.onHold || r.how == Fresh {
		return false
	}
	item, ok := l.Items.GetItem(r)
	if ok {
		l.Counters.HitsWhileDown.Add(1)
		r.Value, r.Null, r.Hit, r.Unvalidated = item.Value, item.Null, true, true
	}
	return ok
}

// Current tells whether those who came while a round ran may be given its result: it is what the
// memory tier holds for them.
func (l *Fetcher) Current(r *Round) bool {
	return r.inMemory && !l.Bypassed() && l.Memory.Trusted(r.slotRange) && l.Generations.Of(r.slotRange) == r.generation &&
		l.Memory.Version(r.slotRange, r.stable) == r.version
}

// putEntryInMemory remembers what an entry of Redis says, for what is left of its life.
func (l *Fetcher) putEntryInMemory(r *Round, e *lease.Entry) {
	if l.Memory == nil {
		return
	}
	life := time.Until(e.Expiry)
	l.putInMemory(r, life, e.Cost, false)
}

// putInMemory offers a round's value to the memory tier, under the version of the key from before
// the value was read. It compares nothing: memory.Get does, at each hit, so a value that comes
// after an invalidation is never served. A refresh raises the version, for it must end what memory
// holds; if an invalidation has raised it meanwhile, the value is not put in memory, and what is
// there ends, too.
func (l *Fetcher) putInMemory(r *Round, ttl, cost time.Duration, refresh bool) {
	life := min(ttl, l.MemoryTTL)
	if l.Memory == nil {
		return
	}
	if life <= 0 || !l.Memory.Trusted(r.slotRange) {
		if refresh { // trust may come back without a clear, and what is there is older
			l.Memory.Invalidate(l.Items.Hash(r), r.stable)
		}
		return
	}
	if refresh {
		var ok bool
		if r.version, ok = l.Memory.Advance(r.slotRange, r.stable, r.version); !ok {
			l.Memory.Invalidate(l.Items.Hash(r), r.stable)
			return
		}
	}
	l.Memory.Note(l.Items.Hash(r), r.stable, r.takenAt)
	delta := uint32(min(l.Delta(cost).Microseconds(), math.MaxUint32))
	if r.inMemory = l.Items.Set(r, delta, life, ttl); !r.inMemory {
		l.Counters.TooHeavy.Add(1)
	}
}

// keep has memory serve a value that was loaded while Redis was out of reach, although nobody tells
// when it is invalidated: until MaxStaleness has passed since its load began, which keeps that
// bound, as nothing that was acknowledged before is missing in it. An Invalidate of this process
// ends it, also one that does not reach Redis; and so does the clear that comes before memory is
// trusted again. Not where keys may be on hold: only Redis knows which are.
func (l *Fetcher) keep(r *Round, row source.Row) {
	if l.Memory == nil || l.cache.MayHold {
		return
	}
	until := row.Began.Add(min(l.cache.MaxStaleness, l.ttl(row), l.MemoryTTL))
	if !time.Now().Before(until) {
		return
	}
	l.Memory.Note(l.Items.Hash(r), r.stable, r.takenAt)
	if !l.Items.Keep(r, until) {
		l.Counters.TooHeavy.Add(1)
	}
}

// forget ends what this process holds of a key, also that its load has failed.
func (l *Fetcher) forget(r *Round) {
	l.Source.Failures.End(r.text)
	if l.Memory != nil {
		l.Memory.Invalidate(l.Items.Hash(r), r.stable)
	}
}

// countRefresh counts a background refresh that is about to load.
func (l *Fetcher) countRefresh(r *Round) {
	l.Counters.BackgroundRefreshes.Add(1)
	if r.early {
		l.Counters.Early.Add(1)
	}
}
