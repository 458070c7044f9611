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
	removeAtOnce  = 500                    // the maximum of a batch
	removerHolds  = 10_000                 // the maximum number of items in memory
	removeTries   = 3
	removePause   = 100 * time.Millisecond // before the second try; then twice as long
	removeTimeout = 10 * time.Second       // of each try
	removers      = 2                      // batches at once: where the database is busy, a batch may wait longer for it than the next takes to come together
)

// remover takes from a queue what a Writer has done itself, off the path of the writes and in
// batches: as many rows in one transaction cost little more than one. Items that are to be done
// Again are put back for the second time. Items that it cannot take away, as while the database is
// out of reach, stay for a Relay, which does them once more: that does no harm, and is counted.
type remover struct {
	queue   Queue
	items   chan []Item   // has room for removerHolds
	held    atomic.Int64  // items in it
	busy    chan struct{} // holds one for each batch under way
	closing chan struct{}
	workers sync.WaitGroup
	ctx     context.Context // of what it does
	stop    context.CancelFunc

	removed atomic.Int64 // items taken away, or put back for the second time
	left    atomic.Int64 // items left to a Relay
}

func newRemover(queue Queue) *remover {
	r := &remover{queue: queue, items: make(chan []Item, removerHolds), busy: make(chan struct{}, removers), closing: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.workers.Go(r.work)
	return r
}

// add takes items as they were put. It never waits: a Relay does those for which there is no room.
func (r *remover) add(items ...Item) {
	n := int64(len(items))
	switch {
	case n == 0:
	case r.held.Add(n) > removerHolds:
		r.held.Add(-n)
		r.left.Add(n)
	default:
		r.items <- items
	}
}

// close takes away what there is, until ctx ends, and ends the goroutines. It is called once, and
// add is not called any more.
func (r *remover) close(ctx context.Context) {
	close(r.items)
	close(r.closing)
	defer context.AfterFunc(ctx, r.stop)()
	r.workers.Wait()
	r.stop()
}

func (r *remover) work() {
	for items := range r.items {
		pause := time.NewTimer(removeAfter)
		select {
		case <-pause.C:
		case <-r.closing:
			pause.Stop()
		}
		for batch := r.gather(items); len(batch) > 0; batch = r.gather(nil) {
			r.busy <- struct{}{}
			r.workers.Go(func() {
				defer func() { <-r.busy }()
				r.finish(batch)
			})
		}
	}
}

// gather adds items that are there to a batch, until it is full.
func (r *remover) gather(batch []Item) []Item {
	for len(batch) < removeAtOnce {
		select {
		case items := <-r.items: // nil: closed
			if items == nil {
				return batch
			}
			batch = append(batch, items...)
		default:
			return batch
		}
	}
	return batch
}

func (r *remover) finish(batch []Item) {
	r.held.Add(int64(-len(batch)))
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
