package consistency

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside"
)

// MemoryQueue is a Queue in this process' memory: its items are lost when the process ends. It is
// bounded, and refuses nothing. A key that waits already is not kept twice. When the queue is full,
// all the waiting keys of the loader that has most of them are replaced by the whole loader
// (cacheaside.Key.All; see Loader.InvalidateAll for its promises and cost). A filter that was still
// to be told of those keys is not.
//
// Several Puts of a key are done once, no later than the first of them asks for, and once more no
// earlier than the last does, if that is later (Item.Again).
//
// It has no goroutine and needs no Close.
type MemoryQueue struct {
	limit int

	mu        sync.Mutex
	byDue     dueHeap
	byID      map[string]*queued
	waiting   map[work]*queued // those that nobody has claimed
	earlier   chan struct{}    // closed when something has become due earlier than all was
	collapsed int64
}

// queued is an item in a MemoryQueue.
type queued struct {
	work
	id       string
	claim    string // by whom it was given out, "" if it waits
	put, due time.Time
	again    time.Duration // after it was done; and
	last     time.Time     // it is done no earlier than that for the last time
	admit    bool
	attempts int
	place    int // in byDue
}

// work is what is to be done, whenever.
type work struct {
	key    cacheaside.Key
	reload bool
}

const defaultLimit = 10_000

// NewMemoryQueue makes a queue of at most limit keys; those of whole loaders, and those that are
// claimed just now, may come on top. 0 or less: 10,000.
func NewMemoryQueue(limit int) *MemoryQueue {
	if limit <= 0 {
		limit = defaultLimit
	}
	return &MemoryQueue{limit: limit, byID: map[string]*queued{}, waiting: map[work]*queued{}, earlier: make(chan struct{})}
}

// Put is Queue.Put. Its errors are those of ctx, and of Key.Check: then nothing was added. Items
// that have been merged have an ID that is neither's: Done and Later without a claim then do
// nothing to them.
func (m *MemoryQueue) Put(ctx context.Context, items ...Item) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, item := range items {
		if err := item.Key.Check(); err != nil {
			return fmt.Errorf("consistency: put: %w", err)
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
			work: work{item.Key, item.Reload}, id: cmp.Or(item.ID, rand.Text()),
			put: now, due: due, again: again, last: due.Add(again), admit: item.Admit, attempts: item.Attempts,
		})
	}
	return nil
}

// lock locks, and returns what unlocks again, and tells those who Wait if they have less to wait.
func (m *MemoryQueue) lock() (unlock func()) {
	m.mu.Lock()
	first, some := m.byDue.first()
	return func() {
		if now, ok := m.byDue.first(); ok && (!some || now.Before(first)) {
			close(m.earlier)
			m.earlier = make(chan struct{})
		}
		m.mu.Unlock()
	}
}

// add adds what nobody has claimed, or has it done together with what waits already.
func (m *MemoryQueue) add(e *queued) {
	if w := m.waiting[e.work]; w != nil {
		delete(m.byID, w.id)
		w.merge(e)
		w.id = rand.Text() // for neither of those who know its IDs knows whether both are done
		m.byID[w.id] = w
		heap.Fix(&m.byDue, w.place)
		return
	}
	m.byID[e.id], m.waiting[e.work] = e, e
	heap.Push(&m.byDue, e)
	if len(m.byDue) > m.limit {
		m.collapse()
	}
}

// merge makes e do for other, too: e is done first when the first of both is due, and last when the
// last is.
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
		delete(m.waiting, e.work)
	}
	heap.Remove(&m.byDue, e.place)
}

// collapse makes room: what waits of the loader with most keys becomes one item.
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
	if waiting[most] < 2 { // one would be no less; what is claimed comes to its end by itself
		return
	}
	all := &queued{work: work{key: cacheaside.Key{Loader: most, All: true}}, id: rand.Text()}
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

// Claim is Queue.Claim. Its errors are those of ctx, and of a life that is none.
func (m *MemoryQueue) Claim(ctx context.Context, most int, life time.Duration) ([]Item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if life <= 0 {
		return nil, errors.New("consistency: claim: life must be positive")
	}
	defer m.lock()()
	var items []Item
	now, claim := time.Now(), rand.Text()
	for len(items) < most && len(m.byDue) > 0 && !m.byDue[0].due.After(now) {
		e := m.byDue[0]
		if e.claim == "" {
			delete(m.waiting, e.work) // a Put that comes now is of a later change
		}
		e.claim, e.due = claim, now.Add(life)
		heap.Fix(&m.byDue, 0)
		again := max(e.again, e.last.Sub(now)) // what has become due since it was merged is done with it
		items = append(items, Item{ID: e.id, Claim: claim, Key: e.key, Again: again, Reload: e.reload, Admit: e.admit, Attempts: e.attempts, Age: now.Sub(e.put)})
	}
	return items, nil
}

// Done is Queue.Done. Its error is that of ctx.
func (m *MemoryQueue) Done(ctx context.Context, items ...Item) error {
	return m.each(ctx, items, func(e *queued, _ Item) { m.remove(e) })
}

// Later is Queue.Later. Its error is that of ctx.
func (m *MemoryQueue) Later(ctx context.Context, items ...Item) error {
	now := time.Now()
	return m.each(ctx, items, func(e *queued, item Item) {
		m.remove(e)
		e.claim, e.due, e.again, e.attempts = "", now.Add(item.After), max(0, item.Again), item.Attempts
		e.last = e.due.Add(e.again)
		m.add(e)
	})
}

// each calls f for those of items that are there, and that nobody else has claimed.
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

// Depth is Queue.Depth. Its error is that of ctx.
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

// Collapsed is how many keys have been replaced by their whole loaders, since the queue was full.
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
		due, some := m.byDue.first()
		m.mu.Unlock()
		var timer <-chan time.Time
		if some {
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

// dueHeap is a heap of items by when they are due.
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
	d[i].place, d[j].place = i, j
}

func (d *dueHeap) Push(x any) {
	e := x.(*queued)
	e.place = len(*d)
	*d = append(*d, e)
}

func (d *dueHeap) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return e
}
