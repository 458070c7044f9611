// Package memory implements the memory tier of a process. A lookup table finds most items, and
// ristretto stores those that have no place in it. Queues decide which items stay. Versions decide
// whether an item may still be served.
package memory

import (
	"fmt"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A Tier holds the items of all loaders of a process within one budget of bytes. A nil Tier holds
// nothing.
//
// Ristretto promises little: it applies a Set later, may drop it, keeps the older of two Sets of
// a new key, and panics if Close races with Set or Get. The tier relies only on this: a Get
// returns an item that was once Set under its hash.
type Tier struct {
	lookup     lookup
	hashLocks  [64]sync.Mutex // each serializes changes of lookup and cache for some hashes: see lockOf
	start      time.Time      // origin of the tier's monotonic clock
	versions   Versions
	cache      *ristretto.Cache[uint64, *Header] // items without a place in lookup
	visits     visits                            // lookups in cache that are in progress
	cacheQueue cacheQueue                        // bounds the bytes in cache's queue
	queues     queues                            // decide which items stay
	largest    int64                             // maximum cost of one item
	index      atomic.Pointer[index]             // nil while no process asks for items by their stable hashes
	hand       atomic.Uint64                     // the next place in lookup for sweep

	mu     sync.RWMutex // guards Set and Del against Close and Index; Get never takes it
	closed bool
}

// itemOverhead is the cost of an item in addition to its key and value, in bytes. The queues count
// ristretto's tables separately.
const itemOverhead = int64(unsafe.Sizeof(Header{}))

// largestShare is the divisor of the budget that yields the maximum cost of one item. A larger
// item is not stored, because it would evict too many others.
const largestShare = 4

// maxTableBudget is the budget, in bytes, above which the lookup table and the remembered keys stop
// growing.
const maxTableBudget = 16 << 30

// New returns a tier that holds about budget bytes. While items are being set, the tier may
// exceed the budget by a largestShare-th.
func New(budget int64) (*Tier, error) {
	if budget <= 0 {
		return nil, fmt.Errorf("memory tier: a budget of %d bytes", budget)
	}
	tables := min(budget, maxTableBudget)
	t := &Tier{lookup: newLookup(tables), start: time.Now(), largest: budget / largestShare}
	t.queues.init(budget, t.lookup.bytes(), tables, t.dead)
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, *Header]{
		NumCounters:        counters,
		MaxCost:            budget,
		BufferItems:        64,
		IgnoreInternalCost: true, // tableSpace includes it
		KeyToHash:          func(h uint64) (uint64, uint64) { return h, 0 },
		OnExit:             t.onExit,
	})
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	t.cache = cache
	return t, nil
}

// Largest returns the maximum weight of an item that Set stores.
func (t *Tier) Largest() int64 { return t.largest - itemOverhead }

// Version returns the version of the keys of range r with this stable hash. The caller takes it
// before its first command to Redis or query of the database.
func (t *Tier) Version(r uint8, stable uint64) uint64 { return t.versions.Now(r, stable) }

// Trust allows items of range r to be served before the time until. After that time they are not
// served, because invalidations may have been missed; the zero time ends trust immediately. The
// caller calls Clear and sets a new generation before Trust. Get reads them in the opposite
// order, so that Trust cannot bring back an item from before the Clear.
func (t *Tier) Trust(r int, until time.Time) {
	t.versions.ranges[r].trust.Store(int64(until.Sub(t.start)))
}

// TrustForEver trusts range 0 without a time limit. A process without Redis calls it.
func (t *Tier) TrustForEver() {
	if t != nil {
		t.versions.ranges[0].trust.Store(math.MaxInt64)
	}
}

// Trusted reports whether items of range r may be served now.
func (t *Tier) Trusted(r uint8) bool {
	trust := t.versions.ranges[r%conn.Ranges].trust.Load()
	return int64(time.Since(t.start)) < trust
}

// Clear outdates all items of range r as a precaution: no invalidation of them is known. GetStale
// still returns them.
func (t *Tier) Clear(r int) { t.versions.Clear(r) }

// Void outdates all items of range r, because some have been invalidated and it is unknown which.
// GetStale does not return them either.
func (t *Tier) Void(r int) { t.versions.Void(r) }

// Forget outdates all items of the keys with this stable hash.
func (t *Tier) Forget(stable uint64) { t.versions.Bump(stable) }

// Advance outdates all items of the keys with this stable hash, for a value that was read after
// their version from was taken. It returns the version under which that value may be Set. It
// reports false if an invalidation came in between.
func (t *Tier) Advance(r uint8, stable, from uint64) (uint64, bool) {
	return t.versions.Advance(r, stable, from)
}

// Invalidate outdates all items of the keys with this stable hash, and frees the item under hash.
func (t *Tier) Invalidate(hash, stable uint64) {
	t.versions.Bump(stable)
	t.Delete(hash)
}

// Left returns the time until the end of the item's TTL. It is negative after that.
func (t *Tier) Left(h *Header) time.Duration { return h.soft - time.Since(t.start) }

// Get returns the live item of key and the current time on the tier's clock. hash is the hash of
// key, and generations are those of its loader.
func Get[K comparable, V any](
	t *Tier, hash uint64, generations *Generations, key K,
) (item *Item[K, V], now time.Duration, ok bool) {
	h, now := t.live(hash, generations)
	if h == nil {
		return nil, 0, false
	}
	item = ItemOf[K, V](h)
	if item == nil || item.Key != key { // another key with the same 64-bit hash
		return nil, 0, false
	}
	h.countHit()
	return item, now, true
}

// Get returns the live item under hash, or nil, and the current time on the tier's clock. The
// caller compares the key.
func (t *Tier) Get(hash uint64, generations *Generations) (h *Header, now time.Duration) {
	if h, now = t.live(hash, generations); h != nil {
		h.countHit()
	}
	return h, now
}

// live returns the live item under hash, or nil, and the time. It reads the clock on every call,
// so that trust also runs out in a process that was suspended.
func (t *Tier) live(hash uint64, generations *Generations) (h *Header, now time.Duration) {
	if h = t.find(hash); h == nil {
		return nil, 0
	}
	trust := t.versions.ranges[h.Range%conn.Ranges].trust.Load() // before generation and version: see Trust
	now = time.Since(t.start)
	if now >= h.expires || int64(now) >= trust && !h.Kept() {
		return nil, now
	}
	if h.Generation != generations.Range(h.Range) { // InvalidateAll
		return nil, now
	}
	if h.Version != t.versions.Now(h.Range, uint64(h.Stripe)) {
		return nil, now
	}
	if h.Groups != nil && !h.Groups.current(&t.versions) {
		return nil, now
	}
	return h, now
}

// find returns the item that is stored under hash, or nil.
func (t *Tier) find(hash uint64) *Header {
	if h := t.lookup.get(hash); h != nil {
		return h
	}
	return t.findElsewhere(hash)
}

func (t *Tier) findElsewhere(hash uint64) *Header {
	h := t.seek(hash)
	if h != nil && t.lookup.hasRoom(hash) {
		if mu := t.lockOf(hash); mu.TryLock() { // the next lookup can do it, too
			t.lookup.found(h)
			mu.Unlock()
		}
	}
	return h
}

// A Read describes the read that has returned the value of an item.
type Read struct {
	Stable uint64        // the stable hash of the key
	Began  time.Duration // on a clock of the caller
}

// Set offers an item to the tier for at most life. The item's TTL ends after ttl. weight is the
// size of its key and value in bytes. An item is Set once. The tier may drop the item. If weight
// exceeds Largest, Set returns false and removes the item that was stored under hash.
func (t *Tier) Set(hash uint64, h *Header, read Read, weight int64, life, ttl time.Duration) bool {
	now := time.Since(t.start)
	h.expires, h.soft = after(now, life), after(now, ttl)
	return t.put(hash, h, &read, weight)
}

// after returns now+d, or the maximum duration if the sum overflows. d is negative for a TTL that
// has ended, possibly before the tier was created.
func after(now, d time.Duration) time.Duration {
	return now + min(d, math.MaxInt64-now)
}

// Keep is like Set, for an item that may be served before the time until, trusted or not. The
// process uses it when it cannot receive the invalidations of other processes. The item's TTL
// ends at the same time, and Near always reports true.
func (t *Tier) Keep(hash uint64, h *Header, read Read, weight int64, until time.Time) bool {
	h.Range, h.Delta = h.Range%conn.Ranges|keptBit, math.MaxUint32
	h.expires = until.Sub(t.start)
	h.soft = h.expires
	return t.put(hash, h, &read, weight)
}

// lockOf returns the lock of a hash. Without it, two items of the same hash could take two places
// in the lookup table, and only one of them would be found.
func (t *Tier) lockOf(hash uint64) *sync.Mutex { return &t.hashLocks[hash%uint64(len(t.hashLocks))] }

// put stores an item. read is nil if the index has the key already.
func (t *Tier) put(hash uint64, h *Header, read *Read, weight int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.closed:
		return true
	case weight > t.Largest():
		t.drop(hash)
		return false
	}
	if i := t.index.Load(); i != nil && read != nil {
		i.note(t, read.Stable, indexed{hash, read.Began})
	}
	size := int64(reflect.TypeOf(h.item).Elem().Size())
	h.hash, h.precautions = hash, t.versions.precautions(h.Range, h.Stripe, h.Version)
	h.cost = weight + h.Groups.size() + itemOverhead + block(size) - size
	h.state.Store(0)
	mu := t.lockOf(hash)
	mu.Lock()
	old, placed := t.lookup.put(h)
	mu.Unlock()
	if old == nil {
		old = t.seek(hash)
	}
	if old != nil {
		t.queues.remove(old)
		t.evict(old)
	}
	if !placed {
		h.state.Store(storedFlag) // a lookup would not find it in the table
	}
	var few [4]*Header // normally enough
	for _, evicted := range t.queues.add(h, few[:0]) {
		t.evict(evicted)
	}
	if !placed && !h.removed() {
		t.store(h)
	}
	if t.queues.full.Load() {
		t.sweep()
	}
	return true
}

// dead reports whether no lookup would return an item: its TTL has ended, or it was invalidated.
// Items that a Clear has outdated are not dead, because GetStale returns them.
func (t *Tier) dead(h *Header) bool {
	now := time.Since(t.start)
	return now >= h.soft && now >= h.expires || h.Generation != nil && h.Generation.ended.Load() ||
		!t.versions.unchangedSince(h.Range, h.Stripe, h.Version, h.precautions) || !t.GroupsCurrent(h.Groups)
}

// sweptPlaces is the number of places of the lookup table that one Set examines for dead items. The
// sweep has gone around the table before a quarter of the items have been replaced.
const sweptPlaces = 4

// sweep evicts dead items from the next places of the lookup table, so that they do not take the
// memory of others. The caller holds t.mu.
func (t *Tier) sweep() {
	from := t.hand.Add(sweptPlaces) - sweptPlaces
	for i := range uint64(sweptPlaces) {
		if h := t.lookup[(from+i)%uint64(len(t.lookup))].Load(); h != nil && t.dead(h) {
			t.queues.remove(h)
			t.evict(h)
		}
	}
}

// Delete frees the item under hash.
func (t *Tier) Delete(hash uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		t.drop(hash)
	}
}

// drop removes the item under hash. The caller holds t.mu.
func (t *Tier) drop(hash uint64) {
	if h := t.lookup.get(hash); h != nil {
		t.lookup.remove(h)
		t.queues.remove(h)
	}
	t.cache.Del(hash)
}

// Close empties the tier and stops its goroutines. After Close, Get finds nothing and Set does
// nothing.
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
		t.queues.clear()
		t.lookup.clear()
	}
}

// GetStale is like Tier.Get, but also returns items that are no longer live. ago is the time since
// the end of the item's TTL, negative before it. GetStale ignores trust. It also returns items that
// a Clear has outdated, because a Clear is only a precaution. It does not return an item that this
// process knows to be invalidated, whether by itself or by a message from another process.
func (t *Tier) GetStale(hash uint64, generations *Generations) (h *Header, ago time.Duration, ok bool) {
	h = t.find(hash)
	if h == nil || h.Generation != generations.Range(h.Range) {
		return nil, 0, false
	}
	if !t.versions.unchangedSince(h.Range, h.Stripe, h.Version, h.precautions) || !t.GroupsCurrent(h.Groups) {
		return nil, 0, false
	}
	h.countHit()
	return h, time.Since(t.start) - h.soft, true
}

// Expire makes h, an item that GetStale has returned, stale from now on. It outdates everything
// else with the same stable hash, including values that are being loaded. again is a new item
// with the same key and value, and weight is its weight.
func (t *Tier) Expire(h, again *Header, stable uint64, weight int64) {
	version, ok := t.Advance(h.Range, stable, h.Version)
	if !ok {
		t.Forget(stable)
		return
	}
	again.Generation, again.Range, again.Stripe, again.Version = h.Generation, h.Range|expiredBit, h.Stripe, version
	again.Groups, again.Null, again.Delta = h.Groups, h.Null, h.Delta
	now := time.Since(t.start)
	again.expires, again.soft = now, min(h.soft, now)
	t.put(h.hash, again, nil, weight)
}

// seek looks up hash in ristretto.
func (t *Tier) seek(hash uint64) *Header {
	visit := t.visits.enter()
	if visit == nil {
		return nil
	}
	defer visit.leave()
	h, _ := t.cache.Get(hash)
	if h != nil && h.removed() {
		return nil
	}
	return h
}

// Wait waits until ristretto has applied or dropped all Sets. Only tests use it.
func (t *Tier) Wait() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		t.cache.Wait()
	}
}
