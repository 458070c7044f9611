package memory

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// lookup finds the items that are read most without asking ristretto, whose Get costs more than all
// else of a hit: a table of pointers to items that the window or ristretto holds, one for each part
// of the hashes. The item that was set or found last has the place, but for one that only the
// window has: nobody would find that elsewhere. It decides nothing: what the window or ristretto
// lets go of leaves it, too, and each item says itself whether it may be served.
type lookup struct {
	places []atomic.Pointer[header]
	shift  uint8
}

// header is what the tier itself needs of an item, whatever its types.
type header struct {
	item   any // the *kept[K, V] that it is the header of
	hash   uint64
	told   atomic.Uint32 // in which tick ristretto was last told of a hit, and whether the item is in the window; or gone
	doubts uint32        // see Versions.doubts
}

// gone is in the place of told when the item has been let go of, or another has come in its stead.
const gone = math.MaxUint32

// inWindow is set in told as long as the window has the item, and ristretto has not.
const inWindow = 1 << 31

func (h *header) inWindow() bool {
	told := h.told.Load()
	return told != gone && told&inWindow != 0
}

// out takes the item out of the window, and tells whether it falls to the caller to offer it to
// ristretto.
func (h *header) out() bool {
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

// kept is an item in the tier.
type kept[K comparable, V any] struct {
	header
	Item[K, V]
}

// bytesAPlace sizes the lookup: a place for so many bytes of the budget, so that two items of the
// usual size rarely want the same.
const bytesAPlace = typicalItem

const placeBytes = 8

func newLookup(budget int64) lookup {
	n := bits.Len64(uint64(budget/bytesAPlace - 1)) // at least 2^10, for the smallest budget
	return lookup{places: make([]atomic.Pointer[header], 1<<n), shift: uint8(64 - n)}
}

func (f *lookup) bytes() int64 { return int64(len(f.places)) * placeBytes }

// at is where an item with this hash stands, if it does.
func (f *lookup) at(hash uint64) *atomic.Pointer[header] {
	return &f.places[hash>>(f.shift&63)]
}

// put gives h its place, unless h has been let go of: whichever comes last, that or this, takes it
// away. It answers false, and does nothing, if the place is another's that is found nowhere else.
func (f *lookup) put(h *header) bool {
	place := f.at(h.hash)
	before := place.Load()
	switch {
	case before == h:
		return true
	case before != nil && before.hash != h.hash && before.inWindow(), !place.CompareAndSwap(before, h):
		return false
	case before != nil && before.hash == h.hash:
		before.told.Store(gone) // h is in its stead
	}
	if h.told.Load() == gone {
		place.CompareAndSwap(h, nil)
	}
	return true
}

// leave is called when the window or ristretto lets go of h.
func (f *lookup) leave(h *header) {
	h.told.Store(gone)
	f.at(h.hash).CompareAndSwap(h, nil)
}

func (f *lookup) clear() {
	for i := range f.places {
		f.places[i].Store(nil)
	}
}

// tick is in what steps ristretto is told of hits of an item, once in each: its counters end at 15,
// and what is read so often stays anyway. Hits of items that are read less often are told of each
// time, so that the rarely read are told apart as well as ever.
const tick = 1 << tickBits * time.Nanosecond // 4.2 ms

const tickBits = 22

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
