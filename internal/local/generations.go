package local

import (
	"sync/atomic"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// stripes is how many counters there are: enough that two keys rarely share one, where sharing costs no more than a reload.
const stripes = 1 << 16

// Generations count the invalidations of keys. A value is read from Redis or the database after its key's generation was taken; if
// the generation is still the same, no invalidation that this process knows of has come between, and the value may be served
// from memory. So it does not matter when, in what order or whether the memory tier applies what it is told.
//
// Keys share striped counters, found by a stable hash of loader and encoded key, the same in every process.
type Generations struct{ stripes [stripes]atomic.Uint64 }

// Now is the generation of the keys with this stable hash.
func (g *Generations) Now(stable uint64) uint64 { return g.stripes[stable%stripes].Load() }

// Bump ends all values of the keys with this stable hash that were read before.
func (g *Generations) Bump(stable uint64) {
	if mutant.Active != mutant.NoBump {
		g.stripes[stable%stripes].Add(1)
	}
}

// Advance is Bump for a value that was read since the generation was from: it answers the generation that the value may be stored under,
// unless there was another invalidation meanwhile.
func (g *Generations) Advance(stable, from uint64) (uint64, bool) {
	return from + 1, g.stripes[stable%stripes].CompareAndSwap(from, from+1)
}
