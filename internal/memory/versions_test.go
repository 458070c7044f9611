package memory

import (
	"sync"
	"testing"
)

func TestBumpMovesTheGenerationOfItsKeysOnly(t *testing.T) {
	var g Versions
	if g.Now(0, 7) != 0 {
		t.Errorf("the first version is %d", g.Now(0, 7))
	}
	g.Bump(7)
	g.Bump(7)
	if g.Now(0, 7) != 2 || g.Now(0, 8) != 0 {
		t.Errorf("the versions are %d and %d", g.Now(0, 7), g.Now(0, 8))
	}
	if g.Now(0, 7+stripes) != 2 {
		t.Errorf("a key of the same stripe has the version %d", g.Now(0, 7+stripes))
	}
	const last = ^uint64(0)
	g.Bump(last)
	if g.Now(0, last) != 1 {
		t.Errorf("the last hash has the version %d", g.Now(0, last))
	}
}

func TestAdvanceIsRefusedAfterAnInvalidation(t *testing.T) {
	var g Versions
	from := g.Now(0, 1)
	if next, ok := g.Advance(0, 1, from); !ok || next != from+1 || g.Now(0, 1) != next {
		t.Errorf("advanced to %d, %v, now %d", next, ok, g.Now(0, 1))
	}
	if _, ok := g.Advance(0, 1, from); ok {
		t.Error("advanced twice from one version")
	}
	from = g.Now(0, 1)
	g.Bump(1)
	before := g.Now(0, 1)
	if _, ok := g.Advance(0, 1, from); ok || g.Now(0, 1) != before {
		t.Errorf("advanced over an invalidation: %v, now %d", ok, g.Now(0, 1))
	}
}

// Of those who advance from one version at a time one succeeds, and no bump is lost.
func TestGenerationsUnderConcurrency(t *testing.T) {
	const workers, turns = 8, 2000
	var g Versions
	var mu sync.Mutex
	given := map[uint64]int{} // how often a version was given out
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			var mine []uint64
			for i := range turns {
				if (i+w)%2 == 0 {
					g.Bump(3)
				} else if next, ok := g.Advance(0, 3, g.Now(0, 3)); ok {
					mine = append(mine, next)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for _, n := range mine {
				given[n]++
			}
		})
	}
	running.Wait()
	for n, mul := range given {
		if mul != 1 {
			t.Errorf("the version %d was given %d times", n, mul)
		}
	}
	if want := uint64(workers*turns/2 + len(given)); g.Now(0, 3) != want {
		t.Errorf("the version is %d after %d changes", g.Now(0, 3), want)
	}
}
