package source

import "sync"

// A keyedMutex allows one load of a key at a time in this process, for loads without a lease. It
// matters when Redis is down, for example for a Get and a Refresh, which share no round. A load
// with a lease does not wait for others, but loads without a lease wait for it.
type keyedMutex struct {
	mu      sync.Mutex
	loading map[string]*loading
}

// loading is the loads of a key that are in progress.
type loading struct {
	n    int
	done chan struct{} // closed when the last of them has ended; nil if no caller waits for that
}

// Enter enters the keys that are not being loaded, or are leased, and returns their indexes in
// ascending order. leased reports whether the key with an index is leased. If Enter returns no
// keys, busy is closed when one of the loads has ended.
//
// A caller loads the keys that it has entered, and leaves, before it waits for others. So two
// batches never wait for each other.
func (s *Source) Enter(texts []string, leased func(i int) bool) (entered []int, busy <-chan struct{}) {
	m := &s.keys
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loading == nil {
		m.loading = make(map[string]*loading)
	}
	var free []loading // for the keys that are not being loaded
	for i, text := range texts {
		l := m.loading[text]
		switch {
		case l == nil:
			if len(free) == 0 {
				free = make([]loading, len(texts)-i)
			}
			l, free = &free[0], free[1:]
			l.n, m.loading[text] = 1, l
		case leased(i):
			l.n++
		default:
			if l.done == nil {
				l.done = make(chan struct{})
			}
			busy = l.done
			continue
		}
		entered = append(entered, i)
	}
	return entered, busy
}

// Leave leaves keys that Enter has entered.
func (s *Source) Leave(texts []string) {
	m := &s.keys
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range texts {
		if l := m.loading[text]; l.n > 1 {
			l.n--
		} else {
			delete(m.loading, text)
			if l.done != nil {
				close(l.done)
			}
		}
	}
}
