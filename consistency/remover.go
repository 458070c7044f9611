package consistency

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
)

const (
	removeAfter      = 100 * time.Millisecond // how long the first items of a batch wait for more
	removeBatch      = 500                    // the maximum number of items in a call of the queue
	removerCapacity  = 10_000                 // the maximum number of items in memory
	removeAttempts   = 3
	removeRetryDelay = 100 * time.Millisecond // before the second attempt; doubled for the next one
	removeTimeout    = 10 * time.Second       // of each attempt

	// removeConcurrency is the maximum number of concurrent batches. In a busy database, one can
	// take longer than the next takes to fill.
	removeConcurrency = 2
)

// A remover removes from the outbox the rows whose keys the Writer has invalidated itself. It
// works in the background and in batches, because one transaction that removes many rows costs
// little more than one that removes one. Rows that are invalidated twice (Item.Again) are
// rescheduled instead. Rows that it cannot remove, for example while the database is down, are
// counted and stay for a Relay. The Relay invalidates their keys once more, which does no harm.
type remover struct {
	queue     Queue
	items     chan []Item   // its capacity is removerCapacity
	scheduled atomic.Int64  // the number of items in the channel
	slots     chan struct{} // a semaphore for batches in progress
	closing   chan struct{}
	workers   sync.WaitGroup
	ctx       context.Context // canceled when the ctx of close ends
	stop      context.CancelFunc

	removed   atomic.Int64 // items removed, or rescheduled for the second invalidation
	abandoned atomic.Int64 // items left to a Relay
}

func newRemover(queue Queue) *remover {
	r := &remover{
		queue: queue, items: make(chan []Item, removerCapacity), slots: make(chan struct{}, removeConcurrency),
		closing: make(chan struct{}),
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.workers.Go(r.work)
	return r
}

// add schedules the removal of items. It never blocks: items that exceed the capacity are left to
// a Relay.
func (r *remover) add(items ...Item) {
	n := int64(len(items))
	excess := min(n, max(0, r.scheduled.Add(n)-removerCapacity))
	r.scheduled.Add(-excess)
	r.abandoned.Add(excess)
	if excess < n {
		r.items <- items[:n-excess]
	}
}

// close removes the scheduled items, until ctx ends, and stops the goroutines. It is called once,
// and add must not be called after it.
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
			for part := range slices.Chunk(batch, removeBatch) {
				r.slots <- struct{}{}
				r.workers.Go(func() {
					defer func() { <-r.slots }()
					r.finish(part)
				})
			}
		}
	}
}

// gather adds scheduled items to a batch until it is full or no more are scheduled. The items of
// one call of add stay together, so it can become larger than removeBatch.
func (r *remover) gather(batch []Item) []Item {
	for len(batch) < removeBatch {
		select {
		case items := <-r.items: // nil: the channel is closed
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
	r.scheduled.Add(int64(-len(batch)))
	var completed, repeated []Item
	for _, item := range batch {
		if item.Again > 0 {
			item.After, item.Again = item.Again, 0
			repeated = append(repeated, item)
		} else {
			completed = append(completed, item)
		}
	}
	point("removing")
	r.send(r.queue.Done, completed)
	r.send(r.queue.Later, repeated)
	point("removed")
}

func (r *remover) send(call func(context.Context, ...Item) error, items []Item) {
	if len(items) == 0 {
		return
	}
	for i := range removeAttempts {
		if i > 0 && retry.Sleep(r.ctx, removeRetryDelay<<(i-1)) != nil {
			break
		}
		ctx, cancel := context.WithTimeout(r.ctx, removeTimeout)
		err := call(ctx, items...)
		cancel()
		if err == nil {
			r.removed.Add(int64(len(items)))
			return
		}
	}
	r.abandoned.Add(int64(len(items)))
}
