// Package memory is the memory tier of a process: ristretto behind versions; before it a window,
// which keeps what is new for a while, and a table by which what is read most is found.
package memory

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

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
	cache    *ristretto.Cache[uint64, *header]
	visits   visits                // under way, of cache
	window   window                // what has been set, and is not in cache yet
	room     room                  // for what cache holds
	largest  int64                 // the cost of an item that is kept
	index    atomic.Pointer[index] // nil: nobody asks for items by their stable hashes
	used     atomic.Bool           // something has been noted, or could have been

	mu     sync.RWMutex // Set and Del against Close; never taken by Get
	closed bool
}

// Item is a value in the memory tier, and all that is needed to tell whether it may still be
// served. It is not changed after Set.
type Item[K comparable, V any] struct {
	Generation *Generation // whose it is: each loader hashes keys in its own way
	Range      uint8       // and keptBit, expiredBit
	Null       bool        // there is no such row
	Stripe     uint16
	Delta      uint32 // what the end of its TTL is to be seen coming by, in microseconds: see Near
	Version    uint64
	expires    time.Duration // on the tier's clock
	soft       time.Duration // the end of its TTL, which may be later
	Key        K
	Value      V
}

// keptBit is set in the Range of an item that Keep has Set, expiredBit in that of one whose TTL
// Expire has ended. Flags of their own would make all items larger; ranges are taken modulo their
// number wherever they are used.
const (
	keptBit    = 1 << 7
	expiredBit = 1 << 6
)

// Kept tells whether the item may be served without trust: see Keep.
func (i *Item[K, V]) Kept() bool { return i.Range&keptBit != 0 }

// Expired tells whether Expire has ended the item's TTL.
func (i *Item[K, V]) Expired() bool { return i.Range&expiredBit != 0 }

// Left is what is left of the item's TTL.
func (i *Item[K, V]) Left(t *Tier) time.Duration { return i.soft - time.Since(t.start) }

// Generation is a generation of a loader in one range of slots: the time between two invalidations
// of all its keys there. Its address tells it from all others.
type Generation struct {
	Number uint64    // as Redis counts them
	Since  time.Time // when it was learned here; zero: it is the first, and there was nothing before
}

// Generations are the present ones of a loader.
type Generations [conn.Ranges]atomic.Pointer[Generation]

// Of is the generation of range r.
func (e *Generations) Of(r uint8) *Generation { return e[r%conn.Ranges].Load() }

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
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, *header]{
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

// horizon is how many Deltas before the end of an item's TTL is near: earlier, nobody would throw a
// die that could win (exp(-32) = 1e-14).
const horizon = 32

// Near tells whether the end of the item's TTL is near, now.
func (i *Item[K, V]) Near(now time.Duration) bool {
	return i.soft-now < time.Duration(i.Delta)*(horizon*time.Microsecond)
}

// Get returns the live item of key, whose hash is hash, of the loader whose generations these are,
// and what the time was, on the tier's clock. Each hit reads that clock: the trust of a process
// that was suspended ends with it.
func Get[K comparable, V any](t *Tier, hash uint64, generations *Generations, key K) (item *Item[K, V], now time.Duration, ok bool) {
	h := find[K, V](t, hash)
	if h == nil {
		return nil, 0, false
	}
	item = &h.Item
	trust := t.versions.ranges[item.Range%conn.Ranges].trust.Load() // before generation and version: see Trust
	now = time.Since(t.start)
	if now >= item.expires || int64(now) >= trust && !item.Kept() {
		return nil, 0, false
	}
	if item.Key != key || item.Generation != generations.Of(item.Range) {
		return nil, 0, false // another key with the same 64-bit hash, or all of the loader was invalidated
	}
	if item.Version != t.versions.Now(item.Range, uint64(item.Stripe)) {
		return nil, 0, false
	}
	t.tell(&h.header, now)
	return item, now, true
}

// find returns what is kept under hash, if it is of these types.
func find[K comparable, V any](t *Tier, hash uint64) *kept[K, V] {
	h := t.lookup.at(hash).Load()
	if h == nil || h.hash != hash {
		if h = t.seek(hash); h == nil {
			return nil
		}
		t.lookup.put(h)
	}
	found, _ := h.item.(*kept[K, V])
	return found
}

// Stored returns the key of the item under hash, whether or not that may be served.
func Stored[K comparable, V any](t *Tier, hash uint64) (key K, ok bool) {
	h := find[K, V](t, hash)
	if h == nil {
		return key, false
	}
	return h.Key, true
}

// Set offers item, whose TTL ends after ttl, to the tier for at most life. weight is the size of
// key and value in bytes. It may not be taken; one that is larger than Largest never is, and ends
// what there was under hash: then the answer is false.
func Set[K comparable, V any](t *Tier, hash uint64, item Item[K, V], weight int64, life, ttl time.Duration) bool {
	now := time.Since(t.start)
	item.expires, item.soft = now+life, now+ttl
	if item.expires < 0 {
		item.expires = math.MaxInt64
	}
	if item.soft < 0 {
		item.soft = math.MaxInt64
	}
	return put(t, hash, item, weight)
}

// Keep is Set for an item that may be served until then, trusted or not: nobody tells what has been
// invalidated since, but for this process itself. Its end is its TTL's, too; and always near.
func Keep[K comparable, V any](t *Tier, hash uint64, item Item[K, V], weight int64, until time.Time) bool {
	item.Range, item.Delta = item.Range%conn.Ranges|keptBit, math.MaxUint32
	item.expires = until.Sub(t.start)
	item.soft = item.expires
	return put(t, hash, item, weight)
}

func put[K comparable, V any](t *Tier, hash uint64, item Item[K, V], weight int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.closed:
		return true
	case weight > t.Largest():
		t.drop(hash)
		return false
	}
	h := &kept[K, V]{header: header{hash: hash, doubts: t.versions.doubts(item.Range, item.Stripe, item.Version)}, Item: item}
	h.item = h
	h.told.Store(inWindow)
	own := int64(unsafe.Sizeof(*h))
	fresh := windowItem{&h.header, weight + itemOverhead + block(own) - own}
	if !t.lookup.put(fresh.header) {
		t.offer(fresh) // else nobody would find it
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

// GetStale is Get for what may have ended: it answers how long ago the item's TTL has, which is
// negative if it has not. It heeds no trust, and no Clear, which is a doubt; but all that is known
// to have been invalidated, by this process, or by another one that was heard.
func GetStale[K comparable, V any](t *Tier, hash uint64, generations *Generations, key K) (item *Item[K, V], ago time.Duration, ok bool) {
	h := find[K, V](t, hash)
	if h == nil || h.Key != key || h.Generation != generations.Of(h.Range) {
		return nil, 0, false
	}
	item = &h.Item
	if !t.versions.firm(item.Range, item.Stripe, item.Version, h.doubts) {
		return nil, 0, false
	}
	return item, time.Since(t.start) - item.soft, true
}

// Expire makes the item of key stale from now on, and ends whatever else has its stable hash, also
// what is being loaded. weight returns the weight of an item, as for Set.
func Expire[K comparable, V any](t *Tier, hash uint64, generations *Generations, key K, stable uint64, weight func(*Item[K, V]) int64) {
	item, ago, ok := GetStale[K, V](t, hash, generations, key)
	if !ok {
		t.Forget(stable)
		return
	}
	next := *item
	if next.Version, ok = t.Advance(item.Range, stable, item.Version); !ok {
		t.Forget(stable)
		return
	}
	next.Range |= expiredBit
	Set(t, hash, next, weight(&next), 0, min(-ago, 0))
}

// tell has ristretto count a hit of h, if it has not in this tick.
func (t *Tier) tell(h *header, now time.Duration) {
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
func (t *Tier) seek(hash uint64) *header {
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

// kept is an item in the tier.
type kept[K comparable, V any] struct {
	header
	Item[K, V]
}

// Wait waits until what was Set has been applied or dropped. Tests need it, nothing else.
func (t *Tier) Wait() {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		t.cache.Wait()
	}
}
