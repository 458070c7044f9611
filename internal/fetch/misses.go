package fetch

import (
	"math"
	"sync/atomic"
)

// A missShare estimates which share of a loader's lookups in Redis finds no value: a moving
// average. A lost concurrent update does no harm. The zero value means no misses.
type missShare struct{ bits atomic.Uint64 }

// observe takes n lookups into account, of which some found no value.
func (m *missShare) observe(n, missed int) {
	old := m.share()
	weight := 1 - math.Pow(1-1.0/16, float64(n)) // each lookup has a weight of 1/16
	if next := old + (float64(missed)/float64(n)-old)*weight; next != old {
		m.bits.Store(math.Float64bits(next))
	}
}

func (m *missShare) share() float64 { return math.Float64frombits(m.bits.Load()) }
