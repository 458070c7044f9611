// Package memory is the memory tier of a process: ristretto behind versions; before it a window,
// which keeps what is new for a while, and a table by which what is read most is found.
package memory

import (
	"fmt"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Tier holds the items of all loaders of a process within one budget of bytes. A nil Tier holds
// nothing.
//
// Ristretto promises little: it applies a Set later, may drop it, keeps the older of two Sets of a
// new key, and its Close panics when it races a Set. Nothing here depends on more than that a Get
// returns something that was once Set under its hash.
type Tier struct {
	lookup   lookup
	start    time.Time // of the tier's monotonic clock
	versions Versions
	cache    *ristretto.Cache[uint64, *Header]
	visits   visits                // under way, of cache
	window   window                // what has been set, and is not in cache yet
	room     room                  // for what cache holds
	largest  int64                 // the cost of an item that is kept
	index    atomic.Pointer[index] // nil: nobody asks for items by their stable hashes
	used     atomic.Bool           // something has been noted, or could have been

	mu     sync.RWMutex // Set and Del against Close; never taken by Get
	closed bool
}

// itemOverhead is what an item costs beside its key and value: ristretto's map entry, policy and
// counters, measured at some 220 bytes (TestBudget), and the fields of Item.
const itemOverhead = 280

// largestShare is which part of the budget one item may cost. A larger one is not kept: all others
// would go for it.
const largestShare = 4

// sizedFor is the budget from which on the tables that find and count items do not grow any more.
const sizedFor = 16 << 30

// New makes a tier that holds at most about budget bytes: while items are set a largestShare-th
// more, by what is set just then.
func New(budget int64) (*Tier, error) {
	t := &Tier{lookup: newLookup(min(budget, sizedFor)), start: time.Now(), largest: budget / largestShare}
	t.window.most = budget / windowShare
	t.room.all = budget - t.lookup.bytes() - t.window.most
	t.room.now.Store(t.room.all)
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, *Header]{
		NumCounters:        max(min(budget, sizedFor)/typicalItem, 100) * 10,
		MaxCost:            t.room.all,
		BufferItems:        64,
		IgnoreInternalCost: true, // itemOverhead has it
		KeyToHash:          func(h uint64) (uint64, uint64) { return h, 0 },
		OnExit:             t.left,
	})
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	t.cache = cache
	return t, nil
}

// Largest is the weight above which Set takes no item.
func (t *Tier) Largest() int64 { return t.largest - itemOverhead }

// Version is the version of the keys of range r with this stable hash. Take it before the
// first look at Redis or the database.
func (t *Tier) Version(r uint8, stable uint64) uint64 { return t.versions.Now(r, stable) }

// Trust lets items of range r be served until then. Without it, or an earlier time, they are not:
// nobody knows what has been invalidated since. Clear and a new generation come before Trust, and
// Get looks in the other order, so that nothing from before a Clear is served by the Trust after
// it.
func (t *Tier) Trust(r int, until time.Time) {
	t.versions.ranges[r].trust.Store(int64(until.Sub(t.start)))
}

// TrustForEver is for a process that is alone.
func (t *Tier) TrustForEver() {
	if t != nil {
		t.versions.ranges[0].trust.Store(math.MaxInt64)
	}
}

// Trusted tells whether items of range r may be served now.
func (t *Tier) Trusted(r uint8) bool {
	trust := t.versions.ranges[r%conn.Ranges].trust.Load()
	return int64(time.Since(t.start)) < trust
}

// Clear ends every item of range r.
func (t *Tier) Clear(r int) { t.versions.Clear(r) }

// Void is Clear for what has been invalidated, nobody knows which: also GetStale does not give it
// out any more.
func (t *Tier) Void(r int) { t.versions.Void(r) }

// Forget ends every item of the keys with this stable hash.
func (t *Tier) Forget(stable uint64) { t.versions.Bump(stable) }

// Advance ends every item of the keys with this stable hash, for a value that was read since their
// version was from. It answers the version under which that value may be Set; not if there
// was an invalidation meanwhile.
func (t *Tier) Advance(r uint8, stable, from uint64) (uint64, bool) {
	return t.versions.Advance(r, stable, from)
}

// Invalidate ends every item of the keys with this stable hash, and frees the one under hash.
func (t *Tier) Invalidate(hash, stable uint64) {
	t.versions.Bump(stable)
	t.Delete(hash)
}

// Left is what is left of the item's TTL.
func (t *Tier) Left(h *Header) time.Duration { return h.soft - time.Since(t.start) }

// Get returns the live item of key, whose hash is hash, of the loader whose generations these are,
// and what the time was, on the tier's clock.
func Get[K comparable, V any](t *Tier, hash uint64, generations *Generations, key K) (item *Item[K, V], now time.Duration, ok bool) {
	h, now := t.live(hash, generations)
	if h == nil {
		return nil, 0, false
	}
	item = Of[K, V](h)
	if item == nil || item.Key != key { // another key with the same 64-bit hash
		return nil, 0, false
	}
	t.tell(h, now)
	return item, now, true
}

// Get is Get for a caller that compares the key itself; nil: there is no live item.
func (t *Tier) Get(hash uint64, generations *Generations) (h *Header, now time.Duration) {
	if h, now = t.live(hash, generations); h != nil {
		t.tell(h, now)
	}
	return h, now
}

// live returns the live item under hash, or nil, and the time. Each call reads the tier's clock:
// the trust of a process that was suspended ends with it.
func (t *Tier) live(hash uint64, generations *Generations) (h *Header, now time.Duration) {
	if h = t.find(hash); h == nil {
		return nil, 0
	}
	trust := t.versions.ranges[h.Range%conn.Ranges].trust.Load() // before generation and version: see Trust
	now = time.Since(t.start)
	if now >= h.expires || int64(now) >= trust && !h.Kept() {
		return nil, now
	}
	if h.Generation != generations.Of(h.Range) { // all of the loader was invalidated
		return nil, now
	}
	if h.Version != t.versions.Now(h.Range, uint64(h.Stripe)) {
		return nil, now
	}
	return h, now
}

// find returns what is kept under hash.
func (t *Tier) find(hash uint64) *Header {
	h := t.lookup.at(hash).Load()
	if h != nil && h.hash == hash {
		return h
	}
	return t.findElsewhere(hash)
}

func (t *Tier) findElsewhere(hash uint64) *Header {
	h := t.seek(hash)
	if h != nil {
		t.lookup.put(h)
	}
	return h
}

// Set offers an item, whose TTL ends after ttl, to the tier for at most life. weight is the size of
// key and value in bytes. It may not be taken; one that is larger than Largest never is, and ends
// what there was under hash: then the answer is false.
func (t *Tier) Set(hash uint64, h *Header, weight int64, life, ttl time.Duration) bool {
	now := time.Since(t.start)
	h.expires, h.soft = after(now, life), after(now, ttl)
	return t.put(hash, h, weight)
}

// after returns now+d, or the greatest duration if that overflows. d is negative for a TTL that has
// ended, which can be longer ago than the tier exists.
func after(now, d time.Duration) time.Duration {
	return now + min(d, math.MaxInt64-now)
}

// Keep is Set for an item that may be served until then, trusted or not: no other process reports
// what it has invalidated since. Its end is its TTL's, too; and always near.
func (t *Tier) Keep(hash uint64, h *Header, weight int64, until time.Time) bool {
	h.Range, h.Delta = h.Range%conn.Ranges|keptBit, math.MaxUint32
	h.expires = until.Sub(t.start)
	h.soft = h.expires
	return t.put(hash, h, weight)
}

func (t *Tier) put(hash uint64, h *Header, weight int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.closed:
		return true
	case weight > t.Largest():
		t.drop(hash)
		return false
	}
	h.hash, h.doubts = hash, t.versions.doubts(h.Range, h.Stripe, h.Version)
	h.told.Store(inWindow)
	own := int64(reflect.TypeOf(h.item).Elem().Size())
	fresh := windowItem{h, weight + itemOverhead + block(own) - own}
	if !t.lookup.put(h) {
		t.offer(fresh) // else no lookup would find it
		return true
	}
	for _, left := range t.window.push(fresh) {
		t.offer(left)
	}
	return true
}

// Delete frees the item under hash.
func (t *Tier) Delete(hash uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		t.drop(hash)
	}
}

// drop ends what there is under hash. t.mu is locked.
func (t *Tier) drop(hash uint64) {
	if h := t.lookup.at(hash).Load(); h != nil && h.hash == hash {
		t.lookup.leave(h) // it may be in the window
	}
	t.cache.Del(hash)
}

// Close empties the tier and ends its goroutines. Get then finds nothing, and Set does nothing.
func (t *Tier) Close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		t.visits.close()
		t.cache.Close()
		t.window.clear()
		t.lookup.clear()
	}
}

// GetStale is Tier.Get for what may have ended: it returns how long ago the item's TTL has ended,
// which is negative if it has not. It heeds no trust, and no Clear, which is a doubt; but all that
// is known to have been invalidated, by this process, or by another one that was heard.
func (t *Tier) GetStale(hash uint64, generations *Generations) (h *Header, ago time.Duration, ok bool) {
	h = t.find(hash)
	if h == nil || h.Generation != generations.Of(h.Range) {
		return nil, 0, false
	}
	if !t.versions.firm(h.Range, h.Stripe, h.Version, h.doubts) {
		return nil, 0, false
	}
	return h, time.Since(t.start) - h.soft, true
}

// Expire makes an item that GetStale has returned stale from now on, and ends whatever else has its
// stable hash, also what is being loaded. again is a new item of the same key and value, weight its
// weight.
func (t *Tier) Expire(h, again *Header, stable uint64, weight int64) {
	version, ok := t.Advance(h.Range, stable, h.Version)
	if !ok {
		t.Forget(stable)
		return
	}
	again.Generation, again.Range, again.Stripe, again.Version = h.Generation, h.Range|expiredBit, h.Stripe, version
	again.Null, again.Delta = h.Null, h.Delta
	t.Set(h.hash, again, weight, 0, min(h.soft-time.Since(t.start), 0))
}

// tell has ristretto count a hit of h, if it has not in this tick.
func (t *Tier) tell(h *Header, now time.Duration) {
	told := h.told.Load()
	this := told&inWindow | uint32(now>>tickBits)&(inWindow>>1-1)
	if told == this || told == gone {
		return
	}
	if h.told.CompareAndSwap(told, this) {
		t.seek(h.hash)
	}
}

// seek asks ristretto, which counts that.
func (t *Tier) seek(hash uint64) *Header {
	visit := t.visits.enter()
	if visit == nil {
		return nil
	}
	defer visit.leave()
	h, _ := t.cache.Get(hash)
	if h != nil && h.told.Load() == gone {
		return nil
	}
	return h
}

// Wait waits until what was Set has been applied or dropped. Tests need it, nothing else.
func (t *Tier) Wait() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		t.cache.Wait()
	}
}
