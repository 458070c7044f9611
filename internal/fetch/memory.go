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

// serveStale ends a round with a stale value.
func (f *Fetcher) serveStale(r *Round) {
	f.Counters.Stale.Add(1)
	r.step = ended
}

// FromMemory fills a round with the copy of its key in memory. Without Redis the copy may be
// stale, and memory need not be trusted.
func (f *Fetcher) FromMemory(r *Round) (ok bool) {
	if f.cache.Store == nil {
		return f.fillFromMemory(r)
	}
	return f.fillFromTrusted(r)
}

// fillFromTrusted fills a round with the copy in memory that a hit would serve.
func (f *Fetcher) fillFromTrusted(r *Round) (ok bool) {
	item, _ := f.Memory.Get(r.hash, f.Generations)
	return item != nil && f.fillFromItem(r, item)
}

// fillFromItem fills a round from an item, if the item is of the round's key.
func (f *Fetcher) fillFromItem(r *Round, item *memory.Header) (ok bool) {
	key, value := f.Items.Pair(item)
	if key == nil {
		return false
	}
	text, err := f.Items.Text(key)
	if err != nil || text != r.text { // another key with the same hash, or a key that a caller has changed
		return false
	}
	r.Value, r.Null = value, item.Null
	return true
}

// fillFromStale fills a round with the copy of its key in memory, trusted or not, within its hard
// life. It returns how long ago the copy's TTL ended, and whether Expire ended it.
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

// fillFromMemory is fillFromStale without the details.
func (f *Fetcher) fillFromMemory(r *Round) (ok bool) {
	_, _, ok = f.fillFromStale(r)
	return ok
}

// fillFromKept fills a round that would load while Redis is down. It uses a value that another
// round has loaded since, and that keepWhileDown has put in memory.
func (f *Fetcher) fillFromKept(r *Round) bool {
	if f.Memory == nil || f.cache.Store == nil || r.bypass || r.notCached || r.mode == Fresh {
		return false
	}
	ok := f.fillFromTrusted(r)
	if ok {
		f.Counters.HitsWhileDown.Add(1)
		r.Hit, r.Unvalidated = true, true
	}
	return ok
}

// newItem returns a round's value as an item of the memory tier, and its weight.
func (f *Fetcher) newItem(r *Round) (item *memory.Header, weight int64) {
	item, weight = f.Items.New(r.Key, r.Value, r.item, r.Null, r.encoded)
	r.item = nil // an item is put into memory once
	item.Generation, item.Range, item.Stripe, item.Version =
		r.generation, r.slotRange, memory.Stripe(r.sharedHash), r.version
	item.Groups = r.groupVersions
	return item, weight
}

// Current reports whether callers that arrived while a round ran may share its result. They may if
// a hit in memory would return the same value to them.
func (f *Fetcher) Current(r *Round) bool {
	return r.inMemory && !f.Bypassed() && f.Memory.Trusted(r.slotRange) &&
		f.Generations.Range(r.slotRange) == r.generation &&
		f.Memory.Version(r.slotRange, r.sharedHash) == r.version && f.Memory.GroupsCurrent(r.groupVersions)
}

// putEntryInMemory puts an entry of Redis in memory for the rest of its TTL.
func (f *Fetcher) putEntryInMemory(r *Round, e *lease.Entry) {
	if f.Memory == nil {
		return
	}
	f.putInMemory(r, e.Expiry.Sub(f.now(r.slotRange)), e.Cost, false)
}

// putInMemory offers a round's value to the memory tier, under the version that the key had
// before the value was read. It compares no versions, because memory.Get does so at each hit. So
// a value that arrives after an invalidation is never served.
//
// A refresh raises the version, because it replaces what memory holds. If an invalidation has
// raised the version since the snapshot, the refreshed value is not stored, and the copy in
// memory is invalidated, too.
func (f *Fetcher) putInMemory(r *Round, ttl, cost time.Duration, refresh bool) {
	if f.Memory == nil {
		return
	}
	life := f.memoryLife(ttl)
	if life <= 0 || !f.Memory.Trusted(r.slotRange) {
		if refresh { // memory may be trusted again without a clear, and its copy is older
			f.Memory.Invalidate(r.hash, r.sharedHash)
		}
		return
	}
	if !f.takeGroupVersions(r) { // a group was invalidated since the value was read
		if refresh {
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
	item, weight := f.newItem(r)
	item.Delta = uint32(min(f.delta(cost).Microseconds(), math.MaxUint32))
	read := memory.Read{Stable: r.sharedHash, Began: r.takenAt}
	if r.inMemory = f.Memory.Set(r.hash, item, read, weight, life, ttl); !r.inMemory {
		f.Counters.TooHeavy.Add(1)
	}
}

// takeGroupVersions takes the versions under which a value is put into memory. It reports whether
// the value is current and fresh. The order matters: the log contains an invalidation before the
// version rises, so if the version was taken after it, Current or Fresh reports false.
func (f *Fetcher) takeGroupVersions(r *Round) bool {
	if !f.Groups.InUse() {
		return true
	}
	r.groupVersions = f.Memory.Groups(r.groups)
	return f.Groups.Current(r.slotRange, r.known, r.groups) && f.Groups.Fresh(r.slotRange, r.known, r.groups)
}

// keepWhileDown lets memory serve a value that was loaded while Redis was down, although this
// process receives no invalidations. It serves the value until MaxStaleness has passed since the
// load began. This keeps the promise of MaxStaleness, because the load saw everything that was
// acknowledged before it began. The value ends earlier with an Invalidate of this process, even
// one that does not reach Redis, and with the clear that precedes renewed trust in memory. Values
// are not kept if keys may be on hold: only Redis knows which are.
func (f *Fetcher) keepWhileDown(r *Round, row source.Row) {
	if f.Memory == nil || f.cache.MayHold {
		return
	}
	until := row.Began.Add(min(f.cache.MaxStaleness, f.ttl(row), f.MemoryTTL))
	if !time.Now().Before(until) {
		return
	}
	// This process may have tried to invalidate a group during the load. Then no number is known.
	if !f.takeGroupVersions(r) || f.Groups.InUse() && f.Memory.GroupVersion(f.Groups.AllHash()) != r.allGroups {
		return
	}
	item, weight := f.newItem(r)
	if !f.Memory.Keep(r.hash, item, memory.Read{Stable: r.sharedHash, Began: r.takenAt}, weight, until) {
		f.Counters.TooHeavy.Add(1)
	}
}

// forget discards what this process knows of a key, including a failure of its load.
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
