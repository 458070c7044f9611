package memory

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// lookup is a table of items. Its places form groups of one cache line each. The hash of an item
// selects a group and the place in it that is tried first. An item that gets a place when it is set
// is found there, and only there: the place stays its own until it is removed. An item whose group
// is full is stored in ristretto. If the group gets a free place, or has one of another item that
// ristretto has, it goes to the item that was found last, because ristretto's Get costs more than
// the rest of a hit. The table decides nothing: items that are removed leave it, and the item
// itself determines whether it may be served.
type lookup []atomic.Pointer[Header]

// bytesPerPlace is the number of bytes of the budget for each place in the table. With it, nearly
// all items of 300 bytes find a place. An item in ristretto takes some 170 bytes more, and is found
// only when ristretto has taken it from its queue.
const bytesPerPlace = 256

const (
	placeBytes  = 8
	lookupGroup = 8 // places
)

func newLookup(budget int64) lookup {
	groups := max(budget/bytesPerPlace/lookupGroup, 1)
	return make(lookup, groups*lookupGroup)
}

func (l lookup) bytes() int64 { return int64(len(l)) * placeBytes }

// first returns the position of the place that is tried first. The others of its group are at this
// position xor 1 to lookupGroup-1.
func (l lookup) first(hash uint64) uint64 {
	first, _ := bits.Mul64(hash, uint64(len(l)))
	return first
}

// get returns the item with this hash, or nil.
func (l lookup) get(hash uint64) *Header {
	first := l.first(hash)
	for i := range uint64(lookupGroup) {
		if h := l[first^i].Load(); h != nil && h.hash == hash {
			return h
		}
	}
	return nil
}

// put stores h, which was set, in its group. It returns the item of the same hash that h replaces
// there, or nil. It returns false, without effect, if all places of the group belong to other items
// that cannot be found elsewhere. Calls of put and found for one hash must not overlap.
func (l lookup) put(h *Header) (old *Header, ok bool) {
	first := l.first(h.hash)
	for i := range uint64(lookupGroup) {
		place := &l[first^i]
		if before := place.Load(); before != nil && before.hash == h.hash && place.CompareAndSwap(before, h) {
			before.setRemoved()
			return before, true
		}
	}
	return nil, l.take(h)
}

// take stores h in a free place of its group, or in that of another item that ristretto has. It
// reports whether there is one.
func (l lookup) take(h *Header) bool {
	first := l.first(h.hash)
	for i := range uint64(lookupGroup) {
		if place := &l[first^i]; place.Load() == nil && place.CompareAndSwap(nil, h) {
			return true
		}
	}
	for i := range uint64(lookupGroup) {
		place := &l[first^i]
		if before := place.Load(); before != nil && before.stored() && place.CompareAndSwap(before, h) {
			return true
		}
	}
	return false
}

// hasRoom reports whether an item that ristretto has could get a place in the group of hash.
func (l lookup) hasRoom(hash uint64) bool {
	first := l.first(hash)
	for i := range uint64(lookupGroup) {
		if h := l[first^i].Load(); h == nil || h.stored() && h.hash != hash {
			return true
		}
	}
	return false
}

// found stores h, which ristretto has, in its group if there is a place for it, and no item of the
// same hash. If h is removed concurrently, the later of found and remove clears the place.
func (l lookup) found(h *Header) {
	if l.get(h.hash) == nil && l.take(h) && h.removed() {
		l.remove(h)
	}
}

// remove clears the place of h, which has been evicted, deleted or replaced.
func (l lookup) remove(h *Header) {
	h.setRemoved()
	first := l.first(h.hash)
	for i := range uint64(lookupGroup) {
		if place := &l[first^i]; place.Load() == h {
			place.CompareAndSwap(h, nil)
		}
	}
}

func (l lookup) clear() {
	for i := range l {
		l[i].Store(nil)
	}
}

// visits counts lookups in ristretto that are in progress. Ristretto's Get panics if Close races
// with it, so close waits for them. The counters are striped, so that goroutines on different
// cores rarely touch the same cache line.
type visits struct {
	_       [64]byte // separates the fields before it, which each hit reads, from the first counter
	stripes [counterStripes]struct {
		visit
		_ [64 - unsafe.Sizeof(visit{})]byte
	}
	closed atomic.Bool
}

const (
	counterBits    = 4
	counterStripes = 1 << counterBits
)

type visit struct{ n atomic.Int64 }

// enter begins a visit. It returns nil after close.
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

// close prevents new visits and waits for the current ones. A visit takes no longer than a map
// lookup.
func (v *visits) close() {
	v.closed.Store(true)
	for i := range v.stripes {
		for v.stripes[i].n.Load() != 0 {
			runtime.Gosched()
		}
	}
}

// Hits counts hits. It is striped like visits.
type Hits struct {
	_      [64]byte
	counts [counterStripes]struct {
		n atomic.Int64
		_ [64 - unsafe.Sizeof(atomic.Int64{})]byte
	}
}

// Add counts a hit.
func (h *Hits) Add() { h.counts[stripe()].n.Add(1) }

// Sum returns the number of hits.
func (h *Hits) Sum() (n int64) {
	for i := range h.counts {
		n += h.counts[i].n.Load()
	}
	return n
}

// stripe selects a stripe by the address of the calling goroutine's stack. Goroutines that run
// concurrently rarely share a stripe, and a goroutine normally keeps its own.
func stripe() int {
	var here byte
	return int(uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9e3779b97f4a7c15 >> (64 - counterBits))
}
