package source

import "sync"

// keyedMutex lets one load of a key at a time run in a process, where Redis does not see to it that
// there is one in the fleet. It matters when Redis is down: a Get and a Refresh, which share no
// round, would both load. A load that has a lease need not wait, but is waited for.
type keyedMutex struct {
	mu      sync.Mutex
	loading map[string]*loading
}

// loading is the loads of a key that are under way.
type loading struct {
	n    int
	done chan struct{} // closed when the last of them has ended
}

// Enter lets in those keys that nobody is loading, or that are leased, as leased tells by their
// place, and answers which, by their places, in order. If there are none, busy is closed when one
// that is being loaded no longer is. A caller who has entered with some keys loads them, and
// leaves, before it waits for others: so two batches never wait for each other.
func (s *Source) Enter(texts []string, leased func(i int) bool) (entered []int, busy <-chan struct{}) {
	m := &s.keys
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loading == nil {
		m.loading = make(map[string]*loading)
	}
	for i, text := range texts {
		l := m.loading[text]
		switch {
		case l == nil:
			m.loading[text] = &loading{n: 1, done: make(chan struct{})}
		case leased(i):
			l.n++
		default:
			busy = l.done
			continue
		}
		entered = append(entered, i)
	}
	return entered, busy
}

// Leave lets out keys that Enter has let in.
func (s *Source) Leave(texts []string) {
	m := &s.keys
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range texts {
		if l := m.loading[text]; l.n > 1 {
			l.n--
		} else {
			delete(m.loading, text)
			close(l.done)
		}
	}
}
