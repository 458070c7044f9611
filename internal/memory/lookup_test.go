package memory

import (
	"testing"
	"testing/synctest"
	"time"
)

// The lookup table does not hold items that were evicted or deleted: they would take memory beyond
// the budget.
func TestTableKeepsToTheBudget(t *testing.T) {
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
	for i := range tier.lookup {
		if tier.lookup[i].Load() != nil {
			t.Fatal("a deleted item is still in the table")
		}
	}
}

func hashOf(i int) uint64 { return uint64(i+1) * 0x9e3779b97f4a7c15 }

// A reader gives a place to an item that it has found in ristretto. If the item is removed at the
// same time, it does not stay there.
func TestTableHoldsNoRemovedItem(t *testing.T) {
	f := newLookup(1 << 20)
	gone, next := &Header{hash: 1}, &Header{hash: 1}
	f.remove(gone)
	f.found(gone)
	if f.get(1) != nil {
		t.Error("a removed item is in the table")
	}
	if _, ok := f.put(next); !ok {
		t.Error("the place is taken")
	}
	f.remove(gone)
	if f.get(1) != next {
		t.Error("another item of the same hash was removed")
	}
}

// Items that are read stay when a thousand others are set once.
func TestBudgetGoesToWhatIsRead(t *testing.T) {
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
			t.Errorf("%d of %d items that were read stayed, after a thousand that were not", kept, hot)
		}
	})
}

// A new item stays for a while, even if all other items have been read more often: it may be read
// soon.
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
		}
		for i := range 100 {
			put(tier, hashOf(known+i), &Item[int, int]{Key: known + i}, size, time.Hour, time.Hour)
			tier.Wait()
			if i < soon {
				continue
			}
			if _, _, ok := Get[int, int](tier, hashOf(known+i-soon), &noEras, known+i-soon); !ok {
				t.Fatalf("an item was evicted before %d others were set", soon)
			}
		}
	})
}

// All items of one group of the table are found. Ristretto has those that got no place.
func TestMoreItemsThanAGroupOfTheTableHolds(t *testing.T) {
	const n = lookupGroup + 3
	tier := newTier(t, 1<<20)
	for i := range n {
		put(tier, uint64(i+1), &Item[int, string]{Key: i, Value: "some"}, 8, time.Hour, time.Hour)
		if tier.lookup.first(uint64(i+1)) != tier.lookup.first(1) {
			t.Fatal("they are of several groups")
		}
	}
	tier.Wait()
	for range 3 {
		for i := range n {
			if item, _, ok := Get[int, string](tier, uint64(i+1), &noEras, i); !ok || item.Key != i {
				t.Errorf("item %d is not found", i)
			}
		}
	}
	if tier.queues.stored != n-lookupGroup {
		t.Errorf("%d items are in ristretto", tier.queues.stored)
	}
	tier.Delete(1) // one of the items in ristretto gets its place
	for range 2 {
		for i := 1; i < n; i++ {
			if _, _, ok := Get[int, string](tier, uint64(i+1), &noEras, i); !ok {
				t.Errorf("item %d is not found", i)
			}
		}
	}
}

// A Set takes its place under the lock of the hash. Otherwise concurrent Sets of a key could take
// two places.
func TestSetsOfAHashTakeTurns(t *testing.T) {
	tier := newTier(t, 64<<10)
	mu := tier.lockOf(1)
	mu.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		put(tier, 1, &Item[int, int]{}, 8, time.Hour, time.Hour)
	}()
	select {
	case <-done:
		t.Error("a Set did not wait for another one")
	case <-time.After(100 * time.Millisecond): // enough for a Set that does not wait
	}
	mu.Unlock()
	<-done
	if tier.lookup.get(1) == nil {
		t.Error("the item has no place")
	}
}

// An item that replaces another one of its key is found, whether they are in the table or in
// ristretto.
func TestReplacedItems(t *testing.T) {
	const n, times = 2 * lookupGroup, 5
	tier := newTier(t, 1<<20)
	for value := range times {
		for i := range n {
			put(tier, uint64(i), &Item[int, int]{Key: i, Value: value}, 8, time.Hour, time.Hour)
		}
	}
	tier.Wait()
	tier.Wait()
	for i := range n {
		if item, _, ok := Get[int, int](tier, uint64(i), &noEras, i); !ok || item.Value != times-1 {
			t.Errorf("item %d: %v, %v", i, item, ok)
		}
	}
	if held := len(linked(&tier.queues.window)) + len(linked(&tier.queues.main)); held != n {
		t.Errorf("%d items are held, of %d keys", held, n)
	}
}

// An item that is larger than the window does not enter it, and evicts nothing from it.
func TestLargeItemsPassByTheWindow(t *testing.T) {
	const budget = 1 << 20
	tier := newTier(t, budget)
	for i := range 10 {
		put(tier, hashOf(i), &Item[int, int]{Key: i}, 8, time.Hour, time.Hour)
	}
	put(tier, hashOf(10), &Item[int, int]{Key: 10}, budget/windowShare, time.Hour, time.Hour)
	n := 0
	for h := tier.queues.window.oldest(); h != nil && h != &tier.queues.window.root; h = h.next {
		n++
	}
	if n != 10 {
		t.Errorf("%d items are in the window, of 10", n)
	}
	tier.Wait()
	if _, _, ok := Get[int, int](tier, hashOf(10), &noEras, 10); !ok {
		t.Error("the large item is not found")
	}
}

// If an item in ristretto is replaced by one that gets a place in the table, ristretto drops it. So
// it is not found when the new item is evicted.
func TestOlderItemDoesNotComeBack(t *testing.T) {
	const last = lookupGroup + 1
	tier := newTier(t, 1<<20)
	for i := range last {
		put(tier, uint64(i+1), &Item[int, string]{Key: i + 1, Value: "old"}, 8, time.Hour, time.Hour)
	}
	tier.Wait()
	if h := tier.lookup.get(last); h != nil || tier.queues.stored != 1 {
		t.Fatal("the last item has a place")
	}
	tier.Delete(1)
	put(tier, last, &Item[int, string]{Key: last, Value: "new"}, 8, time.Hour, time.Hour)
	placed := tier.lookup.get(last)
	if placed == nil {
		t.Fatal("the new item has no place")
	}
	if n := len(linked(&tier.queues.window)) + len(linked(&tier.queues.main)); n != lookupGroup {
		t.Errorf("the queues have %d items", n)
	}
	tier.queues.remove(placed)
	tier.evict(placed)
	tier.Wait()
	if item, _, ok := Get[int, string](tier, last, &noEras, last); ok {
		t.Errorf("after the eviction: %q", item.Value)
	}
}

// A hit that is served stale protects the item from eviction, like any other hit.
func TestStaleHitsCount(t *testing.T) {
	tier := newTier(t, 64<<10)
	put(tier, 1, &Item[int, string]{Key: 1}, 8, time.Hour, time.Hour)
	for i := range 1000 {
		if _, _, ok := tier.GetStale(1, &noEras); !ok {
			t.Fatalf("evicted by the first %d others", i)
		}
		put(tier, uint64(i)*0x9e3779b97f4a7c15, &Item[int, string]{Key: i + 2}, 100, time.Hour, time.Hour)
	}
}
