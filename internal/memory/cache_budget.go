package memory

import (
	"sync"
	"sync/atomic"
)

// window keeps new items for a while before they are offered to ristretto. Ristretto knows only
// one read of a new item, and would refuse it each time, even if it is read again soon. This is
// the window of W-TinyLFU (Einziger, Friedman, Manes: TinyLFU, ACM Transactions on Storage 13,
// 2017), first in, first out.
type window struct {
	mu    sync.Mutex
	items []windowItem // a ring
	first int          // position of the oldest item
	n     int          // number of items
	bytes int64        // total cost
	limit int64
}

// windowShare is the divisor of the budget that yields the size of the window. On traces of a
// shop's reads, a tenth to two fifths perform alike, and all much better than no window: see
// docs/decisions/in-process.md.
const windowShare = 5

type windowItem struct {
	*Header
	cost int64
}

// push inserts an item, and appends the evicted ones to evicted. An item that is larger than the
// window is appended itself.
func (w *window) push(i windowItem, evicted []windowItem) []windowItem {
	if i.cost > w.limit {
		return append(evicted, i)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n == len(w.items) {
		grown := make([]windowItem, max(64, 2*w.n))
		for j := range w.n {
			grown[j] = w.items[(w.first+j)%w.n]
		}
		w.items, w.first = grown, 0
	}
	w.items[(w.first+w.n)%len(w.items)] = i
	w.n++
	w.bytes += i.cost
	for w.bytes > w.limit {
		oldest := &w.items[w.first]
		evicted = append(evicted, *oldest)
		w.bytes -= oldest.cost
		*oldest = windowItem{}
		w.first = (w.first + 1) % len(w.items)
		w.n--
	}
	return evicted
}

func (w *window) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.items, w.first, w.n, w.bytes = nil, 0, 0, 0
}

// cacheBudget enforces bounds that ristretto does not. Ristretto evicts when an item is added, but
// not when an item is set again under its hash and grows. It does not count the items in its queue.
// Its tables never shrink: they keep the size that the greatest number of items has needed.
type cacheBudget struct {
	queued  atomic.Int64 // cost of the items offered since the queue was last known to be empty
	queueMu sync.Mutex
	setMu   [setLocks]sync.Mutex // serializes Sets under the same hash

	total     int64        // in bytes
	available atomic.Int64 // total without the empty table space that removed items have left
	items     atomic.Int64
	peak      atomic.Int64 // maximum of items so far
}

const setLocks = 16

// tableBytes is the part of itemOverhead that ristretto's tables use, in bytes per item.
const tableBytes = 172

// offer passes an item that has left the window to ristretto. It waits if more than t.largest is
// queued.
func (t *Tier) offer(i windowItem) {
	if !i.leaveWindow() {
		return
	}
	if r := &t.cacheBudget; r.queued.Add(i.cost) > t.largest {
		r.queueMu.Lock()
		if r.queued.Load() > t.largest { // no other goroutine has waited
			t.cache.Wait()
			r.queued.Store(i.cost)
		}
		r.queueMu.Unlock()
	}
	t.countItems(1)
	mu := &t.cacheBudget.setMu[i.hash%setLocks]
	mu.Lock()
	defer mu.Unlock()
	t.cache.Del(i.hash) // a second Set could grow the item, or leave one value with the cost of another
	if !t.cache.Set(i.hash, i.Header, i.cost) {
		t.onExit(i.Header)
	}
}

// onExit is called once for each offered item, when ristretto evicts it or has not accepted it.
func (t *Tier) onExit(h *Header) {
	if h != nil { // nil: the delete of a missing item
		t.countItems(-1)
		t.lookup.remove(h)
	}
}

// countItems counts ristretto's items, and adjusts its budget to the table space that removed
// items leave empty. Each item costs more than its table space, so the items still fit into a
// budget that shrinks.
func (t *Tier) countItems(change int64) {
	r := &t.cacheBudget
	n := r.items.Add(change)
	peak := r.peak.Load()
	for n > peak && !r.peak.CompareAndSwap(peak, n) {
		peak = r.peak.Load()
	}
	available := r.total - max(peak-n, 0)*tableBytes
	if before := r.available.Load(); (available-before > t.largest/64 || before-available > t.largest/64) && r.available.CompareAndSwap(before, available) {
		t.cache.UpdateMaxCost(available)
	}
}
