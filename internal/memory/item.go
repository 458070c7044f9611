package memory

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Item is a value in the memory tier. It is not changed after Set.
type Item[K comparable, V any] struct {
	Header
	Key   K
	Value V
}

// Whole returns the item's Header, by which Of finds the item.
func (i *Item[K, V]) Whole() *Header {
	i.item = i
	return &i.Header
}

// Of returns the item of a Header, or nil if the item is of other types.
func Of[K comparable, V any](h *Header) *Item[K, V] {
	item, _ := h.item.(*Item[K, V])
	return item
}

// Header is all that the tier needs of an item, whatever its types, and all that is needed to tell
// whether the item may still be served.
type Header struct {
	item   any // the *Item[K, V] that it is the header of
	hash   uint64
	told   atomic.Uint32 // in which tick ristretto was last told of a hit, and whether the item is in the window; or gone
	doubts uint32        // see Versions.doubts

	Generation *Generation // whose it is: each loader hashes keys in its own way
	Range      uint8       // and keptBit, expiredBit
	Null       bool        // there is no such row
	Stripe     uint16
	Delta      uint32 // what the end of its TTL is to be seen coming by, in microseconds: see Near
	Version    uint64
	expires    time.Duration // on the tier's clock
	soft       time.Duration // the end of its TTL, which may be later
}

// keptBit is set in the Range of an item that Keep has Set, expiredBit in that of one whose TTL
// Expire has ended. Flags of their own would make all items larger; ranges are taken modulo their
// number wherever they are used.
const (
	keptBit    = 1 << 7
	expiredBit = 1 << 6
)

// Kept tells whether the item may be served without trust: see Keep.
func (h *Header) Kept() bool { return h.Range&keptBit != 0 }

// Expired tells whether Expire has ended the item's TTL.
func (h *Header) Expired() bool { return h.Range&expiredBit != 0 }

// Hash returns the hash under which the item was Set.
func (h *Header) Hash() uint64 { return h.hash }

// horizon is how many Deltas before the end of an item's TTL is near: earlier, nobody would throw a
// die that could win (exp(-32) = 1e-14).
const horizon = 32

// Near tells whether the end of the item's TTL is near, now.
func (h *Header) Near(now time.Duration) bool {
	return h.soft-now < time.Duration(h.Delta)*(horizon*time.Microsecond)
}

// gone is in the place of told when the item has been let go of, or another has come in its stead.
const gone = math.MaxUint32

// inWindow is set in told as long as the window has the item, and ristretto has not.
const inWindow = 1 << 31

func (h *Header) inWindow() bool {
	told := h.told.Load()
	return told != gone && told&inWindow != 0
}

// out takes the item out of the window, and tells whether it falls to the caller to offer it to
// ristretto.
func (h *Header) out() bool {
	for {
		told := h.told.Load()
		if told == gone || told&inWindow == 0 {
			return false
		}
		if h.told.CompareAndSwap(told, told&^inWindow) {
			return true
		}
	}
}

// Generation is a generation of a loader in one range of slots: the time between two invalidations
// of all its keys there. Its address tells it from all others.
type Generation struct {
	Number uint64    // as Redis counts them
	Since  time.Time // when it was learned here; zero: it is the first, and there was nothing before
}

// Generations are the present ones of a loader.
type Generations [conn.Ranges]atomic.Pointer[Generation]

// Of is the generation of range r.
func (g *Generations) Of(r uint8) *Generation { return g[r%conn.Ranges].Load() }
