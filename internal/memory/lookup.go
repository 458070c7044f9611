package memory

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// lookup is a table in front of ristretto that finds the items that are read most. Ristretto's
// Get costs more than the rest of a hit. The table has one pointer for each part of the hash
// space, to an item that is in the window or in ristretto. The item that was set or found last
// takes the place, unless the present one is only in the window and could not be found elsewhere.
// The table decides nothing: items that leave the window or ristretto also leave the table, and
// the item itself determines whether it may be served.
type lookup struct {
	places []atomic.Pointer[Header]
	shift  uint8
}

// bytesPerPlace is the number of bytes of the budget for each place in the table. With it, two
// items of typical size rarely need the same place.
const bytesPerPlace = typicalItem

const placeBytes = 8

func newLookup(budget int64) lookup {
	n := bits.Len64(uint64(budget/bytesPerPlace - 1)) // at least 2^10, for the smallest budget
	return lookup{places: make([]atomic.Pointer[Header], 1<<n), shift: uint8(64 - n)}
}

func (l *lookup) bytes() int64 { return int64(len(l.places)) * placeBytes }

// at returns the place of hash.
func (l *lookup) at(hash uint64) *atomic.Pointer[Header] {
	return &l.places[hash>>(l.shift&63)]
}

// put stores h in its place, unless h is removed concurrently: the later of put and remove clears
// the place. put returns false, without effect, if the place belongs to another item that cannot
// be found elsewhere, or is taken concurrently.
func (l *lookup) put(h *Header) bool {
	place := l.at(h.hash)
	before := place.Load()
	switch {
	case before == h:
		return true
	case before != nil && before.hash != h.hash && before.inWindow(), !place.CompareAndSwap(before, h):
		return false
	case before != nil && before.hash == h.hash:
		before.state.Store(removed) // h replaces it
	}
	if h.state.Load() == removed {
		place.CompareAndSwap(h, nil)
	}
	return true
}

// remove clears the place of h. It is called when h leaves the window or ristretto.
func (l *lookup) remove(h *Header) {
	h.state.Store(removed)
	l.at(h.hash).CompareAndSwap(h, nil)
}

func (l *lookup) clear() {
	for i := range l.places {
		l.places[i].Store(nil)
	}
}

// tick is the period in which at most one hit of an item is reported to ristretto. Ristretto's
// counters end at 15, and items that are read more often than once per tick stay anyway. All hits
// of items that are read less often are reported, so ristretto can still distinguish them.
const tick = 1 << tickBits * time.Nanosecond // 4.2 ms

const tickBits = 22

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

// typicalItem is the assumed size of an item in bytes. It determines the number of ristretto's
// frequency counters, ten per item.
const typicalItem = 1024
