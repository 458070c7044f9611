package invalidation

import (
	"context"
	"sync"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Concurrent Deletes share trips to Redis, and one message announces the keys of all of them: each
// message costs Redis a delivery to each process that listens. A Delete is sent at once while fewer
// than maxDeletes are in progress. Those that come later wait, and are sent together when one of
// these has ended. So a Delete is never sent before it was called, and a lone one never waits.

const (
	maxDeletes    = 2  // trips in progress
	maxSharedKeys = 64 // of a Delete; one with more keys has its own trips
	maxShared     = 32 // Deletes in a trip
)

// deletes holds the Deletes that wait for a trip.
type deletes struct {
	mu         sync.Mutex
	inProgress int
	waiting    []*waitingDelete
}

// A waitingDelete is a Delete that shares a trip with others.
type waitingDelete struct {
	ctx    context.Context // only its values
	names  []string
	hashes []uint64
	errs   []error // of the keys, when done is closed
	done   chan struct{}
}

// Delete deletes keys by their names in Redis, which voids every lease and claim on them, and then
// announces their stable hashes. It returns an error per key, nil if Redis has acknowledged both
// steps. It ends with ctx, and a Delete of a few keys also after maxTimeouts command time-outs. A
// longer one has that time for each pipeline.
//
// Both steps go in one trip to each server that has keys. The announcement must not come first: a
// process that receives it would fill its memory again with the value that is about to be
// deleted.
func (b *Bus) Delete(ctx context.Context, names []string, hashes []uint64) []error {
	if len(names) > maxSharedKeys {
		return b.delete(ctx, names, hashes)
	}
	d := &b.deletes
	d.mu.Lock()
	if d.inProgress < maxDeletes {
		d.inProgress++
		d.mu.Unlock()
		defer b.deleteNext()
		return b.delete(ctx, names, hashes)
	}
	w := &waitingDelete{context.WithoutCancel(ctx), names, hashes, nil, make(chan struct{})}
	d.waiting = append(d.waiting, w)
	d.mu.Unlock()
	return b.awaitDelete(ctx, w)
}

func (b *Bus) delete(ctx context.Context, names []string, hashes []uint64) []error {
	errs, _ := b.do(ctx, names, hashes, job{holder: lagHolder, hold: b.lag, change: del})
	return errs
}

// awaitDelete waits for the trip of w.
func (b *Bus) awaitDelete(ctx context.Context, w *waitingDelete) []error {
	began := b.Now()
	bound, cancel := conn.WithTimeout(ctx, maxTimeouts*b.conn.Timeout())
	defer cancel()
	select {
	case <-w.done:
		return w.errs
	case <-bound.Done():
	}
	b.Disown() // Redis may still execute it
	errs := make([]error, len(w.names))
	for i, name := range w.names {
		errs[i] = b.conn.Explain(ctx, bound.Err(), operation, name, b.start.Add(began))
	}
	return errs
}

// deleteNext ends a trip, and starts the next one if Deletes wait.
func (b *Bus) deleteNext() {
	d := &b.deletes
	d.mu.Lock()
	n := min(len(d.waiting), maxShared)
	together := d.waiting[:n:n]
	if d.waiting = d.waiting[n:]; n == 0 {
		d.inProgress--
	}
	d.mu.Unlock()
	if n > 0 && !b.conn.Apart(func() { b.deleteTogether(together) }) {
		b.deleteTogether(together) // the connection is closed, so this fails at once
	}
}

// deleteTogether sends Deletes in one trip.
func (b *Bus) deleteTogether(together []*waitingDelete) {
	defer b.deleteNext()
	var names []string
	var hashes []uint64
	for _, w := range together {
		names, hashes = append(names, w.names...), append(hashes, w.hashes...)
	}
	ctx, collector := Collect(together[0].ctx)
	collector.outer = nil // the collectors of all get what this one collects
	errs := b.delete(ctx, names, hashes)
	for _, w := range together {
		collector.addTo(w.ctx)
		w.errs, errs = errs[:len(w.names):len(w.names)], errs[len(w.names):]
		close(w.done)
	}
}
