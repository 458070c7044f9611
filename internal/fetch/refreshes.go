package fetch

import "sync"

// maxRefreshes is how many flights of refreshes a loader has under way at once. A refresh that is
// due beyond that waits for the next read of its key.
const maxRefreshes = 64

// refreshes are the keys of a loader that are being reloaded in the background.
type refreshes struct {
	mu      sync.Mutex
	keys    map[uint64]bool // by the hash in this process; true: it rests, since its reload was refused
	flights int
	under   sync.WaitGroup // the flights
	closed  bool
}

// enter begins a flight of those keys that are in none, and answers which. Reloading are those that
// others had entered, and that do not rest.
func (n *refreshes) enter(keys []uint64) (entered, reloading []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	full := n.closed || n.flights >= maxRefreshes
	for _, key := range keys {
		rests, under := n.keys[key]
		if under && !rests {
			reloading = append(reloading, key)
		}
		if under || full {
			continue
		}
		if n.keys == nil {
			n.keys = make(map[uint64]bool)
		}
		n.keys[key] = false
		entered = append(entered, key)
	}
	if len(entered) > 0 {
		n.flights++
		n.under.Add(1)
	}
	return entered, reloading
}

func (n *refreshes) leave(keys []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range keys {
		delete(n.keys, key)
	}
	n.flights--
	n.under.Done()
}

// rest notes that keys were not reloaded, and are not being reloaded any more, though they have not
// left.
func (n *refreshes) rest(keys []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range keys {
		n.keys[key] = true
	}
}

// has tells whether a flight has a key, be it that it rests.
func (n *refreshes) has(key uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, under := n.keys[key]
	return under
}

// active tells whether a key is being reloaded by this process.
func (n *refreshes) active(key uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	rests, under := n.keys[key]
	return under && !rests
}

// close lets no flight begin any more.
func (n *refreshes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
}
