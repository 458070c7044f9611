package bloom

import (
	"sync/atomic"
	"unsafe"
)

// looks counts the answers of lookups in the process's memory. It is striped, so that goroutines on
// different cores rarely write to the same cache line: they are told apart by where their stacks
// are, which takes no time to find out, and keeps each at its own stripe.
type looks struct {
	_       [64]byte // so that what is read at each lookup does not stand in the cache line of the first
	stripes [64]struct {
		absent, present atomic.Int64
		_               [48]byte
	}
}

func (l *looks) count(maybe bool) {
	var here byte
	s := &l.stripes[uint64(uintptr(unsafe.Pointer(&here))>>11)*0x9e3779b97f4a7c15>>58]
	if maybe {
		s.present.Add(1)
	} else {
		s.absent.Add(1)
	}
}

// addTo adds what was counted to s.
func (l *looks) addTo(s *Stats) {
	for i := range l.stripes {
		s.Absent += l.stripes[i].absent.Load()
		s.Present += l.stripes[i].present.Load()
	}
}
