package fetch

import (
	"math"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
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

// Remembered puts into a round what memory holds of its key. Without Redis that may be stale, and
// is not trusted.
func (l *Fetcher) Remembered(r *Round) (ok bool) {
	if l.cache.Store == nil {
		return l.fromMemory(r)
	}
	return l.fromTrusted(r)
}

// fromTrusted puts into a round what memory serves of its key.
func (l *Fetcher) fromTrusted(r *Round) (ok bool) {
	item, _ := l.Memory.Get(r.hash, l.Generations)
	return item != nil && l.takeItem(r, item)
}

// takeItem puts into a round what an item holds, if that is of the round's key.
func (l *Fetcher) takeItem(r *Round, item *memory.Header) (ok bool) {
	key, value := l.Items.Pair(item)
	if key == nil {
		return false
	}
	text, err := l.Items.Text(key)
	if err != nil || text != r.text { // another key of that hash; or one that a caller has changed
		return false
	}
	r.Value, r.Null = value, item.Null
	return true
}

// past puts into a round what memory holds of its key within its hard life, trusted or not. It
// returns how long ago the TTL of that has ended, and whether Expire has ended it.
func (l *Fetcher) past(r *Round) (ago time.Duration, expired, ok bool) {
	if l.Memory == nil {
		return 0, false, false
	}
	item, ago, ok := l.Memory.GetStale(r.hash, l.Generations)
	switch {
	case !ok:
		return 0, false, false
	case ago >= l.staleFor(item.Null):
		return ago, item.Expired(), false
	default:
		return ago, item.Expired(), l.takeItem(r, item)
	}
}

// fromMemory ends a round with what memory holds, trusted or not, within its hard life.
func (l *Fetcher) fromMemory(r *Round) (ok bool) {
	_, _, ok = l.past(r)
	return ok
}

// kept answers a round that would load without Redis by what another has loaded and memory keeps.
func (l *Fetcher) kept(r *Round) bool {
	if l.Memory == nil || l.cache.Store == nil || r.bypass || r.onHold || r.how == Fresh {
		return false
	}
	ok := l.fromTrusted(r)
	if ok {
		l.Counters.HitsWhileDown.Add(1)
		r.Hit, r.Unvalidated = true, true
	}
	return ok
}

// item returns a round's value as an item of the memory tier, and its weight.
func (l *Fetcher) item(r *Round) (item *memory.Header, weight int64) {
	item, weight = l.Items.New(r.Key, r.Value, r.Null, r.encoded)
	item.Generation, item.Range, item.Stripe, item.Version = r.generation, r.slotRange, memory.Stripe(r.stable), r.version
	return item, weight
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
			l.Memory.Invalidate(r.hash, r.stable)
		}
		return
	}
	if refresh {
		var ok bool
		if r.version, ok = l.Memory.Advance(r.slotRange, r.stable, r.version); !ok {
			l.Memory.Invalidate(r.hash, r.stable)
			return
		}
	}
	l.Memory.Note(r.hash, r.stable, r.takenAt)
	item, weight := l.item(r)
	item.Delta = uint32(min(l.delta(cost).Microseconds(), math.MaxUint32))
	if r.inMemory = l.Memory.Set(r.hash, item, weight, life, ttl); !r.inMemory {
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
	l.Memory.Note(r.hash, r.stable, r.takenAt)
	if item, weight := l.item(r); !l.Memory.Keep(r.hash, item, weight, until) {
		l.Counters.TooHeavy.Add(1)
	}
}

// forget ends what this process holds of a key, also that its load has failed.
func (l *Fetcher) forget(r *Round) {
	l.Source.Failures.End(r.text)
	if l.Memory != nil {
		l.Memory.Invalidate(r.hash, r.stable)
	}
}

// countRefresh counts a background refresh that is about to load.
func (l *Fetcher) countRefresh(r *Round) {
	l.Counters.BackgroundRefreshes.Add(1)
	if r.early {
		l.Counters.Early.Add(1)
	}
}
