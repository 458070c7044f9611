package source

import (
	"strconv"
	"testing"
)

// A load of many keys that reads one row after another records its keys once, not for each row.
func TestWaitsOfALargeBatch(t *testing.T) {
	batches, rows := new(Source), new(Source)
	cost := func(n int) float64 {
		var w waitGraph
		waiter := &load{source: batches}
		for i := range n {
			waiter.texts = append(waiter.texts, strconv.Itoa(i))
		}
		one := []sourceKey{{rows, "1"}}
		return testing.AllocsPerRun(100, func() {
			noted, cycles := w.enter(waiter, one, true)
			if len(noted) != 1 || len(cycles) != 0 {
				t.Fatal(noted, cycles)
			}
			w.leave(waiter, noted)
		})
	}
	if small, large := cost(10), cost(10_000); large > small {
		t.Errorf("a wait of a load of 10 keys makes %v allocations, of 10,000 keys %v", small, large)
	}
}

// The graph finds the cycles of loads that wait for each other, and keeps nothing of loads that
// have ended.
func TestCyclesOfWaits(t *testing.T) {
	s := new(Source)
	key := func(text string) []sourceKey { return []sourceKey{{s, text}} }
	var w waitGraph
	batch := &load{source: s, texts: []string{"a", "b"}}
	alone, last := &load{source: s, texts: []string{"c"}}, &load{source: s, texts: []string{"d"}}
	enter := func(waiter *load, text string, separate bool, cycle int) {
		t.Helper()
		if _, cycles := w.enter(waiter, key(text), separate); len(cycles) != cycle {
			t.Errorf("the wait for %s: %d cycles", text, len(cycles))
		}
	}
	enter(batch, "a", false, 1)
	enter(batch, "c", false, 0)
	enter(alone, "d", false, 0)
	enter(last, "b", true, 0) // only a batch blocks it
	enter(last, "c", false, 1)
	enter(last, "d", true, 1)
	w.leave(alone, key("d"))
	enter(last, "c", false, 0)
	w.leave(last, key("c"))
	for _, l := range []*load{batch, alone, last} {
		w.end(l)
	}
	if enter(alone, "c", false, 0); len(w.loading) != 0 {
		t.Errorf("%d keys are left", len(w.loading))
	}
}
