//go:build accept

package bloom

import (
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestLookupSpeed compares the best of blocks of lookups that take turns, so that all have the same
// neighbours.
func TestLookupSpeed(t *testing.T) {
	rounds, n := 2, 50_000
	if testenv.Accepting {
		rounds, n = 40, 1_000_000
	}
	l := newLookups(t, n)
	for what, keys := range map[string][]string{"hit": l.there, "miss": l.absent} {
		best := make(map[string]float64)
		for range rounds {
			for way, look := range l.ways(t) {
				for part := range slices.Chunk(keys, 1<<12) {
					start := time.Now()
					look(part)
					took := float64(time.Since(start)) / float64(len(part))
					if before, ok := best[way]; !ok || took < before {
						best[way] = took
					}
				}
			}
		}
		for _, way := range []string{"bitmap", "local", "replica"} {
			ratio := best[way] / best["raw"]
			t.Logf("%-4s %-7s %5.1f ns, raw %5.1f: %.2f", what, way, best[way], best["raw"], ratio)
			if ratio > 1.15 && testenv.Accepting {
				t.Errorf("%s: %s is too slow", what, way)
			}
		}
	}
}
