package memory

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// newQueues returns queues for n items of 1 KiB, and a function that adds an item and returns the
// items that are evicted.
func newQueues(n int) (*queues, func(hash uint64, cost int64) []*Header) {
	q := &queues{}
	q.init(int64(n)<<10, 0, 1<<20, func(*Header) bool { return false }) // many places for ghosts
	q.total = int64(n) << 10
	return q, func(hash uint64, cost int64) []*Header {
		return q.add(&Header{hash: hash * 0x9e3779b97f4a7c15, cost: cost}, nil)
	}
}

func keyOf(h *Header) uint64 { return h.hash * 0xf1de83e19937733d } // the inverse

// linked returns the items of a queue, the oldest first.
func linked(q *queue) (all []*Header) {
	for h := q.root.next; h != &q.root; h = h.next {
		all = append(all, h)
	}
	return all
}

// An item of the window that has been hit moves to the main queue, where it goes around once for
// each further hit. An item that has not been hit is evicted. If its key is set again soon, the new
// item enters the main queue.
func TestQueues(t *testing.T) {
	q, add := newQueues(10)
	for i := range uint64(10) {
		if evicted := add(i, 1<<10); evicted != nil {
			t.Fatal("evicted while there is room")
		}
	}
	items := linked(&q.window)
	for range 5 {
		items[0].countHit()
	}
	items[1].countHit()
	want := func(step string, key uint64, evicted []*Header, evictedKey uint64, main ...uint64) {
		t.Helper()
		if len(evicted) != 1 || keyOf(evicted[0]) != evictedKey {
			t.Fatalf("%s: key %d: %d evicted, want one, of key %d", step, key, len(evicted), evictedKey)
		}
		var got []uint64
		for _, h := range linked(&q.main) {
			got = append(got, keyOf(h))
		}
		if fmt.Sprint(got) != fmt.Sprint(main) {
			t.Errorf("%s: the main queue has %v, want %v", step, got, main)
		}
	}
	want("hit items move", 10, add(10, 1<<10), 2, 0, 1)
	want("no hit", 11, add(11, 1<<10), 3, 0, 1)
	want("set again", 2, add(2, 1<<10), 4, 0, 1, 2)
	for i := uint64(5); i < 11; i++ { // until the window has no more than its share
		add(100+i, 1<<10)
	}
	if n := len(linked(&q.window)); n != 7 {
		t.Fatalf("%d items in the window", n)
	}
	for _, h := range linked(&q.window) {
		h.countHit()
	}
	items[1].countHit() // it goes around once
	got := add(200, 1<<10)
	if len(got) != 1 || keyOf(got[0]) != 0 {
		t.Errorf("of the main queue %d items were evicted, of key %d", len(got), keyOf(got[0]))
	}
	got = add(201, 1<<10)
	if len(got) != 1 || keyOf(got[0]) != 2 {
		t.Errorf("of the main queue %d items were evicted, of key %d", len(got), keyOf(got[0]))
	}
}

// An item that is larger than the window's share, and set for the first time, evicts nothing. It
// enters the main queue if there is room, or if it is set again.
func TestLargeItemsAreSetTwice(t *testing.T) {
	q, add := newQueues(20)
	const large = 5 << 10
	if evicted := add(1, large); evicted != nil || len(linked(&q.main)) != 1 {
		t.Fatal("a large item is not in the main queue though there is room")
	}
	for i := range uint64(15) {
		add(10+i, 1<<10)
	}
	evicted := add(2, large)
	if len(evicted) != 1 || keyOf(evicted[0]) != 2 {
		t.Errorf("%d items are evicted for a large one", len(evicted))
	}
	if evicted = add(2, large); len(evicted) != 5 || len(linked(&q.main)) != 2 {
		t.Errorf("set again: %d items are evicted for it", len(evicted))
	}
	if evicted = add(3, 21<<10); len(evicted) != 1 || keyOf(evicted[0]) != 3 {
		t.Errorf("larger than all: %d are evicted", len(evicted))
	}
}

// A key whose item was deleted returns to the main queue, if the item was in it or had been hit.
func TestDeletedItemsAreRemembered(t *testing.T) {
	q, add := newQueues(10)
	add(1, 1<<10)
	add(2, 1<<10)
	items := linked(&q.window)
	items[0].countHit()
	q.remove(items[0])
	q.remove(items[0])
	q.remove(items[1])
	if q.window.bytes != 0 {
		t.Errorf("%d bytes", q.window.bytes)
	}
	add(1, 1<<10)
	add(2, 1<<10)
	if len(linked(&q.main)) != 1 || len(linked(&q.window)) != 1 {
		t.Errorf("%d items are in the main queue, %d in the window", len(linked(&q.main)), len(linked(&q.window)))
	}
}

// An item that was replaced or deleted before the queues had it is not linked.
func TestRemovedItemsAreNotLinked(t *testing.T) {
	q, _ := newQueues(10)
	h := &Header{hash: 1, cost: 1}
	h.setRemoved()
	if evicted := q.add(h, nil); evicted != nil || q.window.bytes != 0 || q.window.oldest() != nil {
		t.Error("it is linked")
	}
	tier := newTier(t, 1<<20)
	tier.store(h)
	tier.Wait()
	tier.Wait() // a Set is applied before the Delete that follows it
	tier.cache.IterValues(func(*Header) bool {
		t.Error("it is in ristretto")
		return true
	})
}

// An insert looks at a bounded number of items, even if all of them have been hit.
func TestEvictionLooksAtFew(t *testing.T) {
	const n = 10 * maxEvictSteps
	q, add := newQueues(n)
	for i := range uint64(n) {
		add(i, 1<<10)
	}
	for _, h := range linked(&q.window) {
		h.countHit()
	}
	if evicted := add(n, 1<<10); len(evicted) != 1 {
		t.Fatalf("%d items are evicted", len(evicted))
	}
	if moved := len(linked(&q.main)); moved >= maxEvictSteps {
		t.Errorf("%d items were looked at", moved)
	}
}

// After concurrent calls, the queues have exactly the items that the tier holds. Each item in the
// queues can be found, each item that can be found is in the queues, and the counts are right.
func TestQueuesCountWhatIsHeld(t *testing.T) {
	const budget, keys = 256 << 10, 4000
	tier := newTier(t, budget)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20_000 {
				i := int(rand.ExpFloat64()*300) % keys
				if _, _, ok := Get[int, int](tier, hashOf(i), &noEras, i); ok {
					if rand.IntN(50) == 0 {
						tier.Delete(hashOf(i))
					}
					continue
				}
				put(tier, hashOf(i), &Item[int, int]{Key: i}, rand.Int64N(100), time.Hour, time.Hour)
			}
		})
	}
	wg.Wait()
	tier.Wait()
	tier.Wait() // a Set is applied before the Delete that follows it
	held := map[*Header]bool{}
	stored, bytes := 0, int64(0)
	for _, q := range []*queue{&tier.queues.window, &tier.queues.main} {
		for _, h := range linked(q) {
			held[h] = true
			bytes += h.cost
			if h.stored() {
				stored++
			}
			if h.removed() || !h.stored() && tier.lookup.get(h.hash) != h {
				t.Fatal("an item in the queues cannot be found")
			}
		}
	}
	for i := range tier.lookup {
		if h := tier.lookup[i].Load(); h != nil && !held[h] {
			t.Fatal("an item in the table is not in the queues")
		}
	}
	inRistretto := 0
	tier.cache.IterValues(func(h *Header) bool {
		inRistretto++
		if !held[h] {
			t.Error("an item in ristretto is not in the queues")
		}
		return false
	})
	q := &tier.queues
	if bytes != q.window.bytes+q.main.bytes || stored != q.stored || stored != inRistretto {
		t.Errorf("%d bytes, counted %d; %d stored, counted %d, in ristretto %d", bytes, q.window.bytes+q.main.bytes,
			stored, q.stored, inRistretto)
	}
	if bytes > q.total-tableSpace(q.peak) || stored == 0 || len(held) < 100 {
		t.Errorf("%d items of %d bytes, of at most %d; %d stored", len(held), bytes, q.total-tableSpace(q.peak), stored)
	}
}
