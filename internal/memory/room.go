package memory

import (
	"sync"
	"sync/atomic"
)

// window keeps what has been set last for a while, before ristretto is asked whether it is worth
// more: what is read for the first time has been read once, as far as ristretto knows, and would be
// refused each time, however soon it is read again. This is the window of W-TinyLFU (Einziger,
// Friedman, Manes: TinyLFU, ACM Transactions on Storage 13, 2017), first in, first out.
type window struct {
	mu    sync.Mutex
	items []windowItem // a ring
	first int          // the oldest
	n     int          // how many there are
	bytes int64        // what they cost
	most  int64
}

// windowShare is which part of the budget it has. On traces of a shop's reads a tenth to two fifths
// are as good as each other, and all much better than none: see docs/decisions/in-process.md.
const windowShare = 5

type windowItem struct {
	*Header
	cost int64
}

// push puts an item in, and answers those that had to leave for it: only itself, if it is larger
// than all of the window.
func (w *window) push(i windowItem) (left []windowItem) {
	if i.cost > w.most {
		return []windowItem{i}
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
	for w.bytes > w.most {
		oldest := &w.items[w.first]
		left = append(left, *oldest)
		w.bytes -= oldest.cost
		*oldest = windowItem{}
		w.first = (w.first + 1) % len(w.items)
		w.n--
	}
	return left
}

func (w *window) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.items, w.first, w.n, w.bytes = nil, 0, 0, 0
}

// room bounds what ristretto cannot: it keeps to its budget as items are added, but not as they are
// set again under their hashes, when it does not evict; nor does it count what waits in its queue,
// nor the tables that it keeps at the size of the most items that it ever had.
type room struct {
	queued  atomic.Int64 // what has been offered since the queue was empty
	waiting sync.Mutex
	turns   [turns]sync.Mutex // one at a time sets an item under a hash

	all   int64        // its budget
	now   atomic.Int64 // what is left of that beside the tables of items that have gone
	items atomic.Int64
	peak  atomic.Int64 // of items
}

const turns = 16

// tableBytes is what ristretto's tables take for an item, of itemOverhead.
const tableBytes = 172

// offer gives ristretto what leaves the window.
func (t *Tier) offer(i windowItem) {
	if !i.out() {
		return
	}
	if r := &t.room; r.queued.Add(i.cost) > t.largest {
		r.waiting.Lock()
		if r.queued.Load() > t.largest { // else another has waited
			t.cache.Wait()
			r.queued.Store(i.cost)
		}
		r.waiting.Unlock()
	}
	t.counted(1)
	turn := &t.room.turns[i.hash%turns]
	turn.Lock()
	defer turn.Unlock()
	t.cache.Del(i.hash) // set again it would grow; and two sets in a row could leave ristretto with the value of the one and the cost of the other
	if !t.cache.Set(i.hash, i.Header, i.cost) {
		t.left(i.Header)
	}
}

// left is called for each item that was offered, once, when ristretto lets go of it, or has not
// taken it.
func (t *Tier) left(h *Header) {
	if h != nil { // nil: a delete of what was not there
		t.counted(-1)
		t.lookup.leave(h)
	}
}

// counted keeps the count of ristretto's items, and its budget beside the tables that those who
// have gone leave empty. As each item costs more than its place in them, what is there never
// exceeds a budget that shrinks.
func (t *Tier) counted(change int64) {
	r := &t.room
	n := r.items.Add(change)
	peak := r.peak.Load()
	for n > peak && !r.peak.CompareAndSwap(peak, n) {
		peak = r.peak.Load()
	}
	now := r.all - max(peak-n, 0)*tableBytes
	if before := r.now.Load(); (now-before > t.largest/64 || before-now > t.largest/64) && r.now.CompareAndSwap(before, now) {
		t.cache.UpdateMaxCost(now)
	}
}
