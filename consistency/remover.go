package consistency

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
)

const (
	removeAfter   = 100 * time.Millisecond // how long the first of a batch waits for others
	removeAtOnce  = 500                    // so many do not wait
	removerHolds  = 10_000                 // items at most
	removeTries   = 3
	removePause   = 100 * time.Millisecond // before the second try; then twice as long
	removeTimeout = 10 * time.Second       // of each try
	removers      = 2                      // at once: where the database is busy, a batch may wait longer for it than the next takes to come together
)

// remover takes from a queue what a Writer has done itself, off the path of the writes and in
// batches: as many rows in one transaction cost little more than one. Of what is to be done Again
// it has the queue forget the first time. Items that it cannot take away, as while the database is
// out of reach, stay for a Relay, which does them once more: that does no harm, and is counted.
type remover struct {
	queue   Queue
	some    chan struct{} // there are items
	enough  chan struct{} // there are removeAtOnce
	closing chan struct{}
	ended   chan struct{}
	ctx     context.Context // of what it does
	stop    context.CancelFunc

	mu     sync.Mutex
	items  []Item
	closed bool

	removed atomic.Int64 // items taken away, or re-armed
	left    atomic.Int64 // items left to a Relay
}

func newRemover(queue Queue) *remover {
	r := &remover{queue: queue, some: make(chan struct{}, 1), enough: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range removers {
		all.Go(r.work)
	}
	go func() {
		defer close(r.ended)
		all.Wait()
	}()
	return r
}

// add takes items as they were put. It never waits: what there is no room for is left.
func (r *remover) add(items ...Item) {
	r.mu.Lock()
	room := max(0, removerHolds-len(r.items))
	if r.closed {
		room = 0
	}
	taken := items[:min(room, len(items))]
	r.items = append(r.items, taken...)
	n := len(r.items)
	r.mu.Unlock()
	r.left.Add(int64(len(items) - len(taken)))
	if n > 0 {
		signal(r.some)
	}
	if n >= removeAtOnce {
		signal(r.enough)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has been told
	}
}

// close takes away what there is, until ctx ends, and ends the goroutines.
func (r *remover) close(ctx context.Context) {
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	if first {
		close(r.closing)
	}
	defer context.AfterFunc(ctx, r.stop)()
	<-r.ended
	r.stop()
}

func (r *remover) work() {
	for r.wait() {
		for batch := r.take(); len(batch) > 0; batch = r.take() {
			r.finish(batch)
		}
	}
}

// wait returns when there is a batch, and false when there is none and will be none.
func (r *remover) wait() bool {
	select {
	case <-r.some:
	case <-r.closing:
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.items) > 0
	}
	t := time.NewTimer(removeAfter)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.enough:
	case <-r.closing:
	}
	return true
}

func (r *remover) take() []Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.items), removeAtOnce)
	batch := r.items[:n:n]
	if r.items = r.items[n:]; len(r.items) == 0 {
		r.items = nil
	}
	return batch
}

func (r *remover) finish(batch []Item) {
	var done, again []Item
	for _, item := range batch {
		if item.Again > 0 {
			item.After, item.Again = item.Again, 0
			again = append(again, item)
		} else {
			done = append(done, item)
		}
	}
	point("removing")
	r.send(r.queue.Done, done)
	r.send(r.queue.Later, again)
	point("removed")
}

func (r *remover) send(do func(context.Context, ...Item) error, items []Item) {
	if len(items) == 0 {
		return
	}
	for i := range removeTries {
		if i > 0 && retry.Sleep(r.ctx, removePause<<(i-1)) != nil {
			break
		}
		ctx, cancel := context.WithTimeout(r.ctx, removeTimeout)
		err := do(ctx, items...)
		cancel()
		if err == nil {
			r.removed.Add(int64(len(items)))
			return
		}
	}
	r.left.Add(int64(len(items)))
}
