package zklock

import (
	"encoding/binary"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watches are those on nodes of others. go-zk keeps one until it fires, whether anybody still waits
// or not; so there is one for each node, however often it is waited for.
type watches struct {
	mu       sync.Mutex
	asked    map[string]int // how many requests for one are under way
	channels map[string]<-chan zk.Event
}

// answered notes what has become of a request, also if nobody waits for that any more.
func (w *watches) answered(node string, ch <-chan zk.Event, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked[node]--; w.asked[node] == 0 {
		delete(w.asked, node)
	}
	for other, ch := range w.channels {
		if fired(ch) {
			delete(w.channels, other)
		}
	}
	if err == nil {
		w.channels[node] = ch
	}
}

// gone is what a server would say if all nodes that are, or may be, watched had gone.
func (w *watches) gone() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []byte
	for node := range w.asked {
		all = append(all, deleted(node)...)
	}
	for node := range w.channels {
		all = append(all, deleted(node)...)
	}
	return all
}

// fired reports whether a watch has; the channel is closed then, so all who wait for it are woken.
func fired(ch <-chan zk.Event) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// deleted returns the answer of a server that says that a node that is watched has gone.
func deleted(node string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+8+4+4+4+4+len(node)))
	b = append(b, 0xff, 0xff, 0xff, 0xff)             // it answers no request
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)             // nor has it a transaction
	b = append(b, 0, 0, 0, 0)                         // or an error
	b = append(b, 0, 0, 0, byte(zk.EventNodeDeleted)) // what has happened
	b = append(b, 0, 0, 0, 3)                         // the state: connected
	b = binary.BigEndian.AppendUint32(b, uint32(len(node)))
	return append(b, node...)
}
