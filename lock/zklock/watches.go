package zklock

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// watches are those on nodes of others. go-zk keeps one until it fires, whether anybody still waits
// or not; so there is one for each node, however often it is waited for.
type watches struct {
	mu       sync.Mutex
	asked    map[string]int // how many requests for one are under way
	channels map[string]<-chan zk.Event
}

// until returns a channel that has something to receive when the node is gone, or may be;
// zk.ErrNoNode if it is.
//
// It watches the children of the node, which an ephemeral one cannot have: so it does not hear of
// the node's data, which its owner sets whenever it proves that it lives.
func (w *watches) until(ctx context.Context, c *client, node string, timeout time.Duration) (<-chan zk.Event, error) {
	w.mu.Lock()
	ch := w.channels[node]
	w.mu.Unlock()
	if ch != nil && !fired(ch) {
		return ch, nil
	}
	return do(ctx, c, timeout, func(z *zk.Conn) (<-chan zk.Event, error) {
		w.mu.Lock()
		w.asked[node]++
		w.mu.Unlock()
		_, _, ch, err := z.ChildrenW(node)
		w.answered(node, ch, err)
		return ch, err
	})
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
