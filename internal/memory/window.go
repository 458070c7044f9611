package memory

import (
	"sync"
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
	*header
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
