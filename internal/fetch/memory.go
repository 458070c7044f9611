package fetch

import (
	"math"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

func (f *Fetcher) countHit(r *Round) {
	if r.step == ended {
		r.Hit = true
		f.Counters.RedisHits.Add(1)
		if r.Null {
			f.Counters.NullHits.Add(1)
		}
	}
}

// giveStale gives out a stale value.
func (f *Fetcher) serveStale(r *Round) {
	f.Counters.Stale.Add(1)
	r.step = ended
}

// Remembered puts into a round what memory holds of its key. Without Redis that may be stale, and
// is not trusted.
func (f *Fetcher) FromMemory(r *Round) (ok bool) {
	if f.cache.Store == nil {
		return f.fillFromMemory(r)
	}
	return f.fillFromTrusted(r)
}

// fromTrusted puts into a round what memory serves of its key.
func (f *Fetcher) fillFromTrusted(r *Round) (ok bool) {
	item, _ := f.Memory.Get(r.hash, f.Generations)
	return item != nil && f.fillFromItem(r, item)
}

// takeItem puts into a round what an item holds, if that is of the round's key.
func (f *Fetcher) fillFromItem(r *Round, item *memory.Header) (ok bool) {
	key, value := f.Items.Pair(item)
	if key == nil {
		return false
	}
	text, err := f.Items.Text(key)
	if err != nil || text != r.text { // another key of that hash; or one that a caller has changed
		return false
	}
	r.Value, r.Null = value, item.Null
	return true
}

// past puts into a round what memory holds of its key within its hard life, trusted or not. It
// returns how long ago the TTL of that has ended, and whether Expire has ended it.
func (f *Fetcher) fillFromStale(r *Round) (ago time.Duration, expired, ok bool) {
	if f.Memory == nil {
		return 0, false, false
	}
	item, ago, ok := f.Memory.GetStale(r.hash, f.Generations)
	switch {
	case !ok:
		return 0, false, false
	case ago >= f.staleFor(item.Null):
		return ago, item.Expired(), false
	default:
		return ago, item.Expired(), f.fillFromItem(r, item)
	}
}

// fromMemory ends a round with what memory holds, trusted or not, within its hard life.
func (f *Fetcher) fillFromMemory(r *Round) (ok bool) {
	_, _, ok = f.fillFromStale(r)
	return ok
}

// kept answers a round that would load without Redis by what another has loaded and memory keeps.
func (f *Fetcher) fillFromKept(r *Round) bool {
	if f.Memory == nil || f.cache.Store == nil || r.bypass || r.onHold || r.how == Fresh {
		return false
	}
	ok := f.fillFromTrusted(r)
	if ok {
		f.Counters.HitsWhileDown.Add(1)
		r.Hit, r.Unvalidated = true, true
	}
	return ok
}

// item returns a round's value as an item of the memory tier, and its weight.
func (f *Fetcher) newItem(r *Round) (item *memory.Header, weight int64) {
	item, weight = f.Items.New(r.Key, r.Value, r.Null, r.encoded)
	item.Generation, item.Range, item.Stripe, item.Version = r.generation, r.slotRange, memory.Stripe(r.sharedHash), r.version
	return item, weight
}

// Current tells whether those who came while a round ran may be given its result: it is what the
// memory tier holds for them.
func (f *Fetcher) Current(r *Round) bool {
	return r.inMemory && !f.Bypassed() && f.Memory.Trusted(r.slotRange) && f.Generations.Of(r.slotRange) == r.generation &&
		f.Memory.Version(r.slotRange, r.sharedHash) == r.version
}

// putEntryInMemory remembers what an entry of Redis says, for what is left of its life.
func (f *Fetcher) putEntryInMemory(r *Round, e *lease.Entry) {
	if f.Memory == nil {
		return
	}
	life := time.Until(e.Expiry)
	f.putInMemory(r, life, e.Cost, false)
}

// putInMemory offers a round's value to the memory tier, under the version of the key from before
// the value was read. It compares nothing: memory.Get does, at each hit, so a value that comes
// after an invalidation is never served. A refresh raises the version, for it must end what memory
// holds; if an invalidation has raised it meanwhile, the value is not put in memory, and what is
// there ends, too.
func (f *Fetcher) putInMemory(r *Round, ttl, cost time.Duration, refresh bool) {
	life := min(ttl, f.MemoryTTL)
	if f.Memory == nil {
		return
	}
	if life <= 0 || !f.Memory.Trusted(r.slotRange) {
		if refresh { // trust may come back without a clear, and what is there is older
			f.Memory.Invalidate(r.hash, r.sharedHash)
		}
		return
	}
	if refresh {
		var ok bool
		if r.version, ok = f.Memory.Advance(r.slotRange, r.sharedHash, r.version); !ok {
			f.Memory.Invalidate(r.hash, r.sharedHash)
			return
		}
	}
	f.Memory.Note(r.hash, r.sharedHash, r.takenAt)
	item, weight := f.newItem(r)
	item.Delta = uint32(min(f.delta(cost).Microseconds(), math.MaxUint32))
	if r.inMemory = f.Memory.Set(r.hash, item, weight, life, ttl); !r.inMemory {
		f.Counters.TooHeavy.Add(1)
	}
}

// keep has memory serve a value that was loaded while Redis was out of reach, although nobody tells
// when it is invalidated: until MaxStaleness has passed since its load began, which keeps that
// bound, as nothing that was acknowledged before is missing in it. An Invalidate of this process
// ends it, also one that does not reach Redis; and so does the clear that comes before memory is
// trusted again. Not where keys may be on hold: only Redis knows which are.
func (f *Fetcher) keepWhileDown(r *Round, row source.Row) {
	if f.Memory == nil || f.cache.MayHold {
		return
	}
	until := row.Began.Add(min(f.cache.MaxStaleness, f.ttl(row), f.MemoryTTL))
	if !time.Now().Before(until) {
		return
	}
	f.Memory.Note(r.hash, r.sharedHash, r.takenAt)
	if item, weight := f.newItem(r); !f.Memory.Keep(r.hash, item, weight, until) {
		f.Counters.TooHeavy.Add(1)
	}
}

// forget ends what this process holds of a key, also that its load has failed.
func (f *Fetcher) forget(r *Round) {
	f.Source.Failures.End(r.text)
	if f.Memory != nil {
		f.Memory.Invalidate(r.hash, r.sharedHash)
	}
}

// countRefresh counts a background refresh that is about to load.
func (f *Fetcher) countRefresh(r *Round) {
	f.Counters.BackgroundRefreshes.Add(1)
	if r.early {
		f.Counters.Early.Add(1)
	}
}
