package memory

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

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

func (s *visit) leave() { s.n.Add(-1) }

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
