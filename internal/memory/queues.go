package memory

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// queues decide which items stay. A new item enters the window. When the window is larger than its
// share, its oldest item moves to the main queue if it has been hit, and is evicted otherwise. If
// the window is not larger than its share, the oldest item of the main queue is evicted. An item
// that has been hit goes around again first, once for each hit, up to three times, unless no lookup
// would return it. A key that was evicted from the window is remembered for a while. If it is set
// again, it enters the main queue.
//
// This is S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: FIFO Queues are All You Need for Cache
// Eviction, SOSP 2023). Counting a hit takes no lock and fills no buffer: it increments a
// counter in the item.
type queues struct {
	mu          sync.Mutex
	window      queue
	main        queue
	total       int64 // bytes for the items and for ristretto's tables
	windowShare int64 // bytes
	stored      int   // number of items in ristretto
	peak        int   // maximum of stored so far
	ghosts      ghosts
	dead        func(*Header) bool // reports whether no lookup would return an item
	full        atomic.Bool        // an item had to be evicted
}

// windowShare is the divisor of the budget that yields the window's share. On traces of a shop's
// reads, a tenth to a half perform alike: see docs/decisions/in-process.md.
const windowShare = 5

// maxEvictSteps is the maximum number of items that one eviction looks at. Without it, an insert
// could go around a queue of millions of items, because all of them have been hit.
const maxEvictSteps = 1024

// init makes the queues for a budget in bytes, of which the lookup table takes a part. tables is
// the budget by which the tables are sized. dead must not take locks.
func (q *queues) init(budget, lookup, tables int64, dead func(*Header) bool) {
	q.dead = dead
	q.ghosts = newGhosts(tables)
	q.total = budget - lookup - q.ghosts.bytes()
	q.windowShare = budget / windowShare
	q.window.init()
	q.main.init()
}

// add links an item that was set. It appends the items to be evicted, which may include the item
// itself, to evicted.
func (q *queues) add(h *Header, evicted []*Header) []*Header {
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.removed() { // replaced or deleted since
		return evicted
	}
	peak := q.peak
	if h.stored() {
		peak = max(peak, q.stored+1)
	}
	again, limit := q.ghosts.take(h.hash), q.total-tableSpace(peak)
	full := q.window.bytes+q.main.bytes+h.cost > limit
	if large := h.cost > q.windowShare; h.cost > limit || large && full && !again {
		q.ghosts.add(h.hash) // it would evict many others, and has been set only once
		return append(evicted, h)
	} else if large || again {
		h.setMain()
	}
	q.peak = peak
	if full && !q.full.Load() {
		q.full.Store(true)
	}
	for q.window.bytes+q.main.bytes+h.cost > limit {
		evicted = append(evicted, q.evict())
	}
	q.link(h)
	return evicted
}

// evict unlinks an item, and returns it. The queues are not empty.
func (q *queues) evict() *Header {
	for range maxEvictSteps {
		h := q.main.oldest()
		if h == nil || q.window.bytes > q.windowShare {
			if h = q.window.oldest(); !h.hit() || q.dead(h) {
				q.ghosts.add(h.hash)
				q.unlink(h)
				return h
			}
			q.unlink(h)
			h.clearHits()
			h.setMain()
			q.link(h)
			continue
		}
		q.unlink(h)
		if !h.takeHit() || q.dead(h) {
			return h
		}
		q.link(h)
	}
	h := q.main.oldest() // all that was looked at is in it
	q.unlink(h)
	return h
}

// remove unlinks an item that was deleted or replaced. If its key is set again, it enters the
// main queue if this item was in it, or has been hit.
func (q *queues) remove(h *Header) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.next != nil {
		q.unlink(h)
		if h.inMain() || h.hit() {
			q.ghosts.add(h.hash)
		}
	}
}

// queueOf returns the queue of an item.
func (q *queues) queueOf(h *Header) *queue {
	if h.inMain() {
		return &q.main
	}
	return &q.window
}

func (q *queues) link(h *Header) {
	q.queueOf(h).push(h)
	if h.stored() {
		q.stored++
	}
}

// unlink removes an item from its queue, if it is in one.
func (q *queues) unlink(h *Header) {
	if h.next != nil {
		q.queueOf(h).drop(h)
		if h.stored() {
			q.stored--
		}
	}
}

func (q *queues) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window.init()
	q.main.init()
}

// A queue is a doubly linked list of items.
type queue struct {
	root  Header // its next is the oldest item, its prev the newest one
	bytes int64  // total cost
}

func (q *queue) init() { q.root.next, q.root.prev, q.bytes = &q.root, &q.root, 0 }

func (q *queue) oldest() *Header {
	if q.root.next == &q.root {
		return nil
	}
	return q.root.next
}

func (q *queue) push(h *Header) {
	h.prev, h.next = q.root.prev, &q.root
	h.prev.next, h.next.prev = h, h
	q.bytes += h.cost
}

func (q *queue) drop(h *Header) {
	h.prev.next, h.next.prev = h.next, h.prev
	h.prev, h.next = nil, nil
	q.bytes -= h.cost
}

// tableSpace returns the maximum number of bytes that ristretto's tables take if they have held n
// items at once. They never shrink. Room for eight items in each of its 256 shards, 120 KiB, is
// not included: it is part of what the tier takes in addition to its budget.
func tableSpace(n int) int64 { return int64(n) * tableBytes }

const tableBytes = 172 // per item

// ghosts remember keys by parts of their hashes. Each has one place, which the next key of the
// same place takes.
type ghosts []uint32

// bytesPerGhost is the number of bytes of the budget for each place.
const bytesPerGhost = 512

const ghostBytes = 4

func newGhosts(budget int64) ghosts { return make(ghosts, max(budget/bytesPerGhost, 1)) }

func (g ghosts) bytes() int64 { return int64(len(g)) * ghostBytes }

// slot returns the place of hash, and what marks it in that place.
func (g ghosts) slot(hash uint64) (place *uint32, mark uint32) {
	index, _ := bits.Mul64(hash, uint64(len(g)))
	return &g[index], uint32(hash) | 1
}

func (g ghosts) add(hash uint64) {
	place, mark := g.slot(hash)
	*place = mark
}

// take forgets hash, and reports whether it was remembered.
func (g ghosts) take(hash uint64) bool {
	place, mark := g.slot(hash)
	if *place != mark {
		return false
	}
	*place = 0
	return true
}
