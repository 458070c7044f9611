package memory

import (
	"sync"
	"sync/atomic"
)

// cacheQueue bounds the bytes in ristretto's queue, which ristretto does not count.
type cacheQueue struct {
	queued  atomic.Int64 // cost of the items stored since the queue was last known to be empty
	queueMu sync.Mutex
}

// counters is the number of ristretto's frequency counters. They decide nothing: ristretto has room
// for all items that the queues keep.
const counters = 1024

// store stores an item in ristretto, because its place in the lookup table belongs to another one.
// It waits if more than t.largest is queued.
func (t *Tier) store(h *Header) {
	if q := &t.cacheQueue; q.queued.Add(h.cost) > t.largest {
		q.queueMu.Lock()
		if q.queued.Load() > t.largest { // no other goroutine has waited
			seen := q.queued.Load()
			t.cache.Wait()
			q.queued.Add(h.cost - seen)
		}
		q.queueMu.Unlock()
	}
	mu := t.lockOf(h.hash)
	mu.Lock()
	defer mu.Unlock()
	// Otherwise this Set would replace an item of the same hash. Ristretto evicts nothing if the
	// replacement is larger, and concurrent Sets could leave one item with the cost of another.
	t.cache.Del(h.hash)
	if !t.cache.Set(h.hash, h, h.cost) {
		t.onExit(h)
	} else if h.removed() { // before the Set
		t.cache.Del(h.hash)
	}
}

// onExit is called when ristretto has dropped an item.
func (t *Tier) onExit(h *Header) {
	if h != nil { // nil: the delete of a missing item
		t.lookup.remove(h)
		t.queues.remove(h)
	}
}

// evict removes an item that the queues have evicted.
func (t *Tier) evict(h *Header) {
	t.lookup.remove(h)
	if h.stored() {
		t.cache.Del(h.hash)
	}
}
