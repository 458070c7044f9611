package memory

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// lookup finds the items that are read most without asking ristretto, whose Get costs more than all
// else of a hit: a table of pointers to items that the window or ristretto holds, one for each part
// of the hashes. The item that was set or found last has the place, but for one that only the
// window has: nobody would find that elsewhere. It decides nothing: what the window or ristretto
// lets go of leaves it, too, and each item says itself whether it may be served.
type lookup struct {
	places []atomic.Pointer[Header]
	shift  uint8
}

// bytesAPlace sizes the lookup: a place for so many bytes of the budget, so that two items of the
// usual size rarely want the same.
const bytesAPlace = typicalItem

const placeBytes = 8

func newLookup(budget int64) lookup {
	n := bits.Len64(uint64(budget/bytesAPlace - 1)) // at least 2^10, for the smallest budget
	return lookup{places: make([]atomic.Pointer[Header], 1<<n), shift: uint8(64 - n)}
}

func (l *lookup) bytes() int64 { return int64(len(l.places)) * placeBytes }

// at is where an item with this hash stands, if it does.
func (l *lookup) at(hash uint64) *atomic.Pointer[Header] {
	return &l.places[hash>>(l.shift&63)]
}

// put gives h its place, unless h has been let go of: whichever comes last, that or this, takes it
// away. It answers false, and does nothing, if the place is another's that is found nowhere else.
func (l *lookup) put(h *Header) bool {
	place := l.at(h.hash)
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
func (l *lookup) leave(h *Header) {
	h.told.Store(gone)
	l.at(h.hash).CompareAndSwap(h, nil)
}

func (l *lookup) clear() {
	for i := range l.places {
		l.places[i].Store(nil)
	}
}

// tick is in what steps ristretto is told of hits of an item, once in each: its counters end at 15,
// and what is read so often stays anyway. Hits of items that are read less often are told of each
// time, so that the rarely read are told apart as well as ever.
const tick = 1 << tickBits * time.Nanosecond // 4.2 ms

const tickBits = 22

// visits are the looks into ristretto that are under way: it is not closed under them, for its Get
// panics if its Close races it. They are striped, so that goroutines on different cores rarely
// touch the same cache line.
type visits struct {
	_       [64]byte // so that what is read at each hit does not stand in the cache line of the first
	stripes [stripesOfCounters]struct {
		visit
		_ [64 - unsafe.Sizeof(visit{})]byte
	}
	closed atomic.Bool
}

const (
	counterBits       = 4
	stripesOfCounters = 1 << counterBits
)

type visit struct{ n atomic.Int64 }

// enter begins a visit; nil after close.
func (v *visits) enter() *visit {
	s := &v.stripes[stripe()].visit
	s.n.Add(1)
	if v.closed.Load() {
		s.n.Add(-1)
		return nil
	}
	return s
}

func (v *visit) leave() { v.n.Add(-1) }

// close lets nobody in any more, and returns when all have left. A visit takes no longer than a
// look into a map.
func (v *visits) close() {
	v.closed.Store(true)
	for i := range v.stripes {
		for v.stripes[i].n.Load() != 0 {
			runtime.Gosched()
		}
	}
}

// Hits counts hits. It is striped, as visits are.
type Hits struct {
	_      [64]byte
	counts [stripesOfCounters]struct {
		n atomic.Int64
		_ [64 - unsafe.Sizeof(atomic.Int64{})]byte
	}
}

// Add counts a hit.
func (h *Hits) Add() { h.counts[stripe()].n.Add(1) }

// Sum is how many there were.
func (h *Hits) Sum() (n int64) {
	for i := range h.counts {
		n += h.counts[i].n.Load()
	}
	return n
}

// stripe is for the goroutine that asks: by where its stack is. So those that run on different
// cores at the same time rarely have the same one, and one that runs on finds its own where it left
// it.
func stripe() int {
	var here byte
	return int(uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9e3779b97f4a7c15 >> (64 - counterBits))
}

// typicalItem sizes ristretto's frequency counters, of which it wants ten an item.
const typicalItem = 1024
