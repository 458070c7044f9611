package memory

import (
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// An Item is a value in the memory tier. It is not modified after Set.
type Item[K comparable, V any] struct {
	Header
	Key   K
	Value V
}

// Whole returns the item's Header. Of converts it back to the item.
func (i *Item[K, V]) Whole() *Header {
	i.item = i
	return &i.Header
}

// ItemOf returns the item of a Header, or nil if its types are not K and V.
func ItemOf[K comparable, V any](h *Header) *Item[K, V] {
	item, _ := h.item.(*Item[K, V])
	return item
}

// Header is the part of an item that does not depend on its types. It contains all that
// determines whether the item may be served.
type Header struct {
	item        any // the *Item[K, V] that contains this header
	hash        uint64
	prev, next  *Header // in its queue; nil: in none
	cost        int64   // bytes that count against the budget
	state       atomic.Uint32
	precautions uint32 // see Versions.precautions

	Generation *Generation // identifies the loader, too: each loader hashes keys in its own way
	Range      uint8       // the range, with keptBit and expiredBit
	Null       bool        // the row does not exist
	Stripe     uint16
	Delta      uint32 // the load cost in microseconds, for early refresh: see Near
	Version    uint64
	Groups     *Groups       // nil: it has none
	expires    time.Duration // on the tier's clock
	soft       time.Duration // the end of its TTL, which may be later than expires
}

// keptBit is set in the Range of an item that Keep has stored. expiredBit is set if Expire has
// ended the item's TTL. Separate fields would make every item larger. All uses of Range take it
// modulo the number of ranges.
const (
	keptBit    = 1 << 7
	expiredBit = 1 << 6
)

// Kept reports whether the item may be served without trust: see Keep.
func (h *Header) Kept() bool { return h.Range&keptBit != 0 }

// Expired reports whether Expire has ended the item's TTL.
func (h *Header) Expired() bool { return h.Range&expiredBit != 0 }

// Hash returns the hash under which the item was Set.
func (h *Header) Hash() uint64 { return h.hash }

// horizon is the length, in Deltas, of the last part of an item's TTL, during which Near reports
// true. Before that, the probability of an early refresh is negligible (exp(-32) = 1e-14).
const horizon = 32

// Near reports whether the item is so close to the end of its TTL that an early refresh is
// possible.
func (h *Header) Near(now time.Duration) bool {
	return h.soft-now < time.Duration(h.Delta)*(horizon*time.Microsecond)
}

// The state of an item: the number of hits since it entered its queue or went around in it, and
// flags.
const (
	hitsMask   = 3      // hits beyond it are not counted
	storedFlag = 1 << 2 // ristretto has it, or will have it soon, because it found no place in lookup
	mainFlag   = 1 << 3 // in the main queue, not in the window; changes only under the lock of the queues
	goneFlag   = 1 << 4 // evicted, deleted or replaced
)

func (h *Header) stored() bool  { return h.state.Load()&storedFlag != 0 }
func (h *Header) inMain() bool  { return h.state.Load()&mainFlag != 0 }
func (h *Header) removed() bool { return h.state.Load()&goneFlag != 0 }
func (h *Header) hit() bool     { return h.state.Load()&hitsMask != 0 }

func (h *Header) setMain()    { h.state.Or(mainFlag) }
func (h *Header) setRemoved() { h.state.Or(goneFlag) }
func (h *Header) clearHits()  { h.state.And(^uint32(hitsMask)) }

// countHit counts a hit. If others count one at the same time, it may be lost.
func (h *Header) countHit() {
	if state := h.state.Load(); state&hitsMask != hitsMask {
		h.state.CompareAndSwap(state, state+1)
	}
}

// takeHit takes a hit back, and reports whether there was one. The caller holds the lock of the
// queues, so that no other takes it.
func (h *Header) takeHit() bool {
	if !h.hit() {
		return false
	}
	h.state.Add(^uint32(0))
	return true
}

// A Generation is the time between two invalidations of all keys of a loader in one range of
// slots. Its address distinguishes it from all others.
type Generation struct {
	Number uint64    // the number in Redis
	Since  time.Time // when this process learned of it; zero: it is the first one
	ended  atomic.Bool
}

// Generations are the current generations of a loader, by range.
type Generations [conn.Ranges]atomic.Pointer[Generation]

// Range returns the generation of range r.
func (g *Generations) Range(r uint8) *Generation { return g[r%conn.Ranges].Load() }

// Replace replaces the generation old of range r by next. It reports false, without effect, if
// another generation has replaced old.
func (g *Generations) Replace(r int, old, next *Generation) bool {
	if !g[r].CompareAndSwap(old, next) {
		return false
	}
	if old != nil {
		old.ended.Store(true)
	}
	return true
}
