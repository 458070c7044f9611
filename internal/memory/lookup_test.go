package memory

import (
	"testing"
	"testing/synctest"
	"time"
)

// What ristretto lets go of is not kept by the table before it: else it would be memory beyond the
// budget.
func TestFrontKeepsToTheBudget(t *testing.T) {
	const budget, size, n = 1 << 20, 64 << 10, 500
	tier := newTier(t, budget)
	for i := range n {
		put(tier, hashOf(i), &Item[int, int]{Key: i}, size, time.Hour, time.Hour)
		tier.Wait()
	}
	kept := 0
	for i := range n {
		if _, _, ok := Get[int, int](tier, hashOf(i), &noEras, i); ok {
			kept++
		}
	}
	if kept > budget/size {
		t.Errorf("%d items of %d bytes in %d", kept, size, budget)
	}
	for i := range n {
		tier.Invalidate(hashOf(i), 0)
	}
	for i := range tier.lookup.places {
		if tier.lookup.places[i].Load() != nil {
			t.Fatal("what was deleted is kept")
		}
	}
}

func hashOf(i int) uint64 { return uint64(i+1) * 0x9e3779b97f4a7c15 }

// A reader that has found an item puts it in its place, though ristretto may let go of it just
// then.
func TestFrontPutsNothingThatHasGone(t *testing.T) {
	f := newLookup(1 << 20)
	gone, next := &Header{hash: 1}, &Header{hash: 1}
	f.remove(gone)
	f.put(gone)
	if f.at(1).Load() != nil {
		t.Error("what has gone is kept")
	}
	f.put(next)
	f.remove(gone)
	if f.at(1).Load() != next {
		t.Error("another went in its place")
	}
}

// What is found in the table is read as far as ristretto knows, too, which keeps what is read.
func TestBudgetGoesToWhatIsRead(t *testing.T) {
	if underRace {
		t.Log("with the race detector ristretto hears of no hit, since a sync.Pool loses what it is given: make test runs this without it, too")
		return
	}
	synctest.Test(t, func(t *testing.T) {
		const budget, size, hot = 1 << 20, 32 << 10, 16
		tier, err := New(budget)
		if err != nil {
			t.Fatal(err)
		}
		defer tier.Close()
		tier.TrustForEver()
		for i := range hot {
			put(tier, hashOf(i), &Item[int, int]{Key: i}, size, time.Hour, time.Hour)
		}
		tier.Wait()
		for range 200 {
			time.Sleep(tick)
			for i := range hot {
				for range 3 {
					Get[int, int](tier, hashOf(i), &noEras, i)
				}
			}
		}
		for i := range 1000 {
			put(tier, hashOf(hot+i), &Item[int, int]{Key: hot + i}, size, time.Hour, time.Hour)
			tier.Wait()
		}
		kept := 0
		for i := range hot {
			if _, _, ok := Get[int, int](tier, hashOf(i), &noEras, i); ok {
				kept++
			}
		}
		if kept < hot*3/4 {
			t.Errorf("%d of %d that are read often were kept, of a thousand others that are not", kept, hot)
		}
	})
}

// What has been read for the first time stays for a while, though all else has been read more
// often: it may be read again soon.
func TestWhatIsNewStaysForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget, size, known, soon = 1 << 20, 8 << 10, 200, 20
		tier, err := New(budget)
		if err != nil {
			t.Fatal(err)
		}
		defer tier.Close()
		tier.TrustForEver()
		for range 100 {
			for i := range known {
				if _, _, ok := Get[int, int](tier, hashOf(i), &noEras, i); !ok {
					put(tier, hashOf(i), &Item[int, int]{Key: i}, size, time.Hour, time.Hour)
				}
			}
			tier.Wait()
			time.Sleep(tick)
		}
		for i := range 100 {
			put(tier, hashOf(known+i), &Item[int, int]{Key: known + i}, size, time.Hour, time.Hour)
			tier.Wait()
			if i < soon {
				continue
			}
			if _, _, ok := Get[int, int](tier, hashOf(known+i-soon), &noEras, known+i-soon); !ok {
				t.Fatalf("the one that was set %d before is not there any more", soon)
			}
		}
	})
}

// Two items that want the same place are both found, however new they are, for ristretto has the
// one that has lost it.
func TestTwoOfOnePlace(t *testing.T) {
	tier := newTier(t, 1<<20)
	for i := range 2 {
		put(tier, uint64(i+1), &Item[int, string]{Key: i, Value: "some"}, 8, time.Hour, time.Hour)
	}
	tier.Wait()
	if tier.lookup.at(1) != tier.lookup.at(2) {
		t.Fatal("they have places of their own")
	}
	for range 3 {
		for i := range 2 {
			if item, _, ok := Get[int, string](tier, uint64(i+1), &noEras, i); !ok || item.Key != i {
				t.Errorf("item %d is not found", i)
			}
			tier.Wait() // ristretto takes what it is offered a moment later
		}
	}
}

// An item that is larger than the window passes by it, and drives nothing out.
func TestLargeItemsPassByTheWindow(t *testing.T) {
	const budget = 1 << 20
	tier := newTier(t, budget)
	for i := range 10 {
		put(tier, hashOf(i), &Item[int, int]{Key: i}, 8, time.Hour, time.Hour)
	}
	put(tier, hashOf(10), &Item[int, int]{Key: 10}, budget/windowShare, time.Hour, time.Hour)
	if tier.window.n != 10 {
		t.Errorf("%d items are in the window, of 10", tier.window.n)
	}
	tier.Wait()
	if _, _, ok := Get[int, int](tier, hashOf(10), &noEras, 10); !ok {
		t.Error("the large one is not there")
	}
}
