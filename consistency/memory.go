package consistency

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// A MemoryQueue is a Queue in the memory of this process. Its items are lost when the process
// ends.
//
// It is bounded, but accepts every item. Items of one key are merged. When the queue is full, the
// waiting keys and groups of the loader with most of them are replaced by one item for the whole
// loader (cacheaside.Key.All; see Loader.InvalidateAll for its promises and cost). If some of these
// keys still had to be added to a filter, they are not added any more.
//
// A merged item is handled at the earliest time that was requested. If the latest requested time
// is later, it is handled again then (Item.Again).
//
// A MemoryQueue has no goroutine and needs no Close.
type MemoryQueue struct {
	limit int

	mu        sync.Mutex
	byDue     dueHeap
	byID      map[string]*queued
	waiting   map[mergeKey]*queued // the items that are not claimed
	earlier   chan struct{}        // closed when the first due time has become earlier
	collapsed int64
}

// A queued is an item in a MemoryQueue.
type queued struct {
	mergeKey
	id       string
	claim    string // "" if it is not claimed
	put, due time.Time
	again    time.Duration // the delay of the second invalidation, counted from the first
	last     time.Time     // the earliest time of the last invalidation
	admit    bool
	attempts int
	index    int // index in byDue
}

// A mergeKey identifies items that can be merged.
type mergeKey struct {
	key    cacheaside.Key
	reload bool
}

const defaultLimit = 10_000

// NewMemoryQueue returns a queue of at most limit keys and groups. Items for whole loaders and
// claimed items can exceed the limit. If limit is 0 or less, it is 10,000.
func NewMemoryQueue(limit int) *MemoryQueue {
	if limit <= 0 {
		limit = defaultLimit
	}
	return &MemoryQueue{
		limit: limit, byID: map[string]*queued{}, waiting: map[mergeKey]*queued{}, earlier: make(chan struct{}),
	}
}

// Put implements Queue.Put. It returns the error of ctx or Key.Check, and has then added nothing.
// A merged item has a new ID: Done and Later with the ID of one of its parts and without a Claim
// do not affect it.
func (m *MemoryQueue) Put(ctx context.Context, items ...Item) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, item := range items {
		if err := item.Key.Check(); err != nil {
			return wording.Errorf("consistency: put: %w", err)
		}
	}
	defer m.lock()()
	now := time.Now()
	for _, item := range items {
		if m.byID[item.ID] != nil {
			continue
		}
		due, again := now.Add(item.After), max(0, item.Again)
		m.add(&queued{
			mergeKey: mergeKey{item.Key, item.Reload}, id: cmp.Or(item.ID, rand.Text()),
			put: now, due: due, again: again, last: due.Add(again), admit: item.Inserting, attempts: item.Attempts,
		})
	}
	return nil
}

// lock locks the queue. It returns a function that unlocks it, and wakes the callers of Wait if
// the first due time has become earlier.
func (m *MemoryQueue) lock() (unlock func()) {
	m.mu.Lock()
	first, nonempty := m.byDue.first()
	return func() {
		if now, ok := m.byDue.first(); ok && (!nonempty || now.Before(first)) {
			close(m.earlier)
			m.earlier = make(chan struct{})
		}
		m.mu.Unlock()
	}
}

// add adds an item that is not claimed, or merges it with the waiting item of the same mergeKey.
func (m *MemoryQueue) add(e *queued) {
	if w := m.waiting[e.mergeKey]; w != nil {
		delete(m.byID, w.id)
		w.merge(e)
		w.id = rand.Text() // a caller that has the ID of one part must not remove the other part
		m.byID[w.id] = w
		heap.Fix(&m.byDue, w.index)
		return
	}
	m.byID[e.id], m.waiting[e.mergeKey] = e, e
	heap.Push(&m.byDue, e)
	if len(m.byDue) > m.limit {
		m.collapse()
	}
}

// merge extends q to cover other. The first invalidation is due at the smaller of both due times,
// and the last one at the larger of both last times.
func (q *queued) merge(other *queued) {
	if other.last.After(q.last) {
		q.last = other.last
	}
	q.again = max(q.again, other.again)
	if other.due.Before(q.due) {
		q.due = other.due
	}
	if other.put.Before(q.put) {
		q.put = other.put
	}
	q.admit = q.admit || other.admit
	q.attempts = max(q.attempts, other.attempts)
}

func (m *MemoryQueue) remove(e *queued) {
	delete(m.byID, e.id)
	if e.claim == "" {
		delete(m.waiting, e.mergeKey)
	}
	heap.Remove(&m.byDue, e.index)
}

// collapse makes room: it replaces the waiting items of the loader with most keys by one item.
func (m *MemoryQueue) collapse() {
	waiting, most := map[string]int{}, ""
	for w := range m.waiting {
		if !w.key.All {
			waiting[w.key.Loader]++
		}
	}
	for loader, n := range waiting {
		if n > waiting[most] {
			most = loader
		}
	}
	if waiting[most] < 2 { // replacing one item saves nothing; claimed items leave the queue on their own
		return
	}
	all := &queued{mergeKey: mergeKey{key: cacheaside.Key{Loader: most, All: true}}, id: rand.Text()}
	for _, e := range m.waiting {
		if e.key.All || e.key.Loader != most {
			continue
		}
		m.remove(e)
		if all.put.IsZero() {
			all.put, all.due = e.put, e.due
		}
		all.merge(e)
	}
	m.collapsed += int64(waiting[most])
	m.add(all)
}

// Claim implements Queue.Claim. It returns an error if ctx has ended or claimFor is not positive.
func (m *MemoryQueue) Claim(ctx context.Context, limit int, claimFor time.Duration) ([]Item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if claimFor <= 0 {
		return nil, errors.New("consistency: claim: the duration must be positive")
	}
	defer m.lock()()
	var items []Item
	now, claim := time.Now(), rand.Text()
	for len(items) < limit && len(m.byDue) > 0 && !m.byDue[0].due.After(now) {
		e := m.byDue[0]
		if e.claim == "" {
			delete(m.waiting, e.mergeKey) // a Put from now on is for a later change
		}
		e.claim, e.due = claim, now.Add(claimFor)
		heap.Fix(&m.byDue, 0)
		again := max(e.again, e.last.Sub(now)) // a last invalidation that is also due already is merged with this one
		items = append(items, Item{
			ID: e.id, Claim: claim, Key: e.key, Again: again, Reload: e.reload, Inserting: e.admit,
			Attempts: e.attempts, Age: now.Sub(e.put),
		})
	}
	return items, nil
}

// Done implements Queue.Done. Its only error is that of ctx.
func (m *MemoryQueue) Done(ctx context.Context, items ...Item) error {
	return m.each(ctx, items, func(e *queued, _ Item) { m.remove(e) })
}

// Later implements Queue.Later. Its only error is that of ctx.
func (m *MemoryQueue) Later(ctx context.Context, items ...Item) error {
	now := time.Now()
	return m.each(ctx, items, func(e *queued, item Item) {
		m.remove(e)
		e.claim, e.due, e.again, e.attempts = "", now.Add(item.After), max(0, item.Again), item.Attempts
		e.last = e.due.Add(e.again)
		m.add(e)
	})
}

// each calls f for the items that are in the queue and have not been claimed again.
func (m *MemoryQueue) each(ctx context.Context, items []Item, f func(*queued, Item)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	defer m.lock()()
	for _, item := range items {
		e := m.byID[item.ID]
		if e == nil || item.Claim != "" && item.Claim != e.claim {
			continue
		}
		f(e, item)
	}
	return nil
}

// Depth implements Queue.Depth. Its only error is that of ctx.
func (m *MemoryQueue) Depth(ctx context.Context) (Depth, error) {
	if err := ctx.Err(); err != nil {
		return Depth{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	d, oldest := Depth{Items: len(m.byDue)}, now
	for _, e := range m.byDue {
		if !e.due.After(now) {
			d.Due++
		}
		if e.put.Before(oldest) {
			oldest = e.put
		}
	}
	d.Oldest = now.Sub(oldest)
	return d, nil
}

// Collapsed returns the number of keys that were replaced by their whole loaders because the
// queue was full.
func (m *MemoryQueue) Collapsed() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.collapsed
}

// Wait returns when an item is due, or ctx ends.
func (m *MemoryQueue) Wait(ctx context.Context) {
	for {
		m.mu.Lock()
		earlier := m.earlier
		due, nonempty := m.byDue.first()
		m.mu.Unlock()
		var timer <-chan time.Time
		if nonempty {
			if time.Until(due) <= 0 {
				return
			}
			timer = time.After(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer:
		case <-earlier:
		}
	}
}

// A dueHeap is a heap of items, ordered by due time.
type dueHeap []*queued

func (d dueHeap) first() (due time.Time, ok bool) {
	if len(d) == 0 {
		return time.Time{}, false
	}
	return d[0].due, true
}

func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].due.Before(d[j].due) }

func (d dueHeap) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

func (d *dueHeap) Push(x any) {
	e := x.(*queued)
	e.index = len(*d)
	*d = append(*d, e)
}

func (d *dueHeap) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return e
}
