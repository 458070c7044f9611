package memory

import (
	"sync"
	"sync/atomic"
	"time"
)

// index finds items by the stable hashes of their keys, for other processes that ask about them
// and do not have the keys. The first question creates it. It is dropped after a time without
// questions, because it slows each Set a little. Of items that were Set before it was created, it
// has only the stripes. The caller must check that an item found here is live.
//
// The number of entries is bounded by the items in the tier plus indexRecent per shard. Older
// entries are dropped when the tier no longer holds their items.
type index struct {
	since  time.Duration         // creation time on the tier's clock
	before atomic.Pointer[older] // nil until the items from before were collected
	shards [indexShards]struct {
		mu                sync.Mutex
		current, previous map[uint64]indexed // by stable hash
	}
}

// indexed describes the item that was Set last under a stable hash. If two Sets run concurrently,
// it may describe either.
type indexed struct {
	hash uint64        // the tier's hash of the key
	read time.Duration // when the read began, on the setter's clock
}

const (
	indexShards = 16
	indexRecent = 4096 // entries of each shard that stay even if the tier has dropped their items
)

// older holds the hashes of items by their stripes: those of stripe s are at ends[s-1] to ends[s].
type older struct {
	ends   [stripes]uint32
	hashes []uint64
}

func (o *older) of(stripe uint16) []uint64 {
	from := uint32(0)
	if stripe > 0 {
		from = o.ends[stripe-1]
	}
	return o.hashes[from:o.ends[stripe]]
}

// Index turns the index that Look needs on or off. It reports whether this changed anything.
func (t *Tier) Index(on bool) bool {
	if !on {
		return t.index.Swap(nil) != nil
	}
	i := &index{since: time.Since(t.start)}
	t.mu.Lock() // a concurrent Set either sees the index, or its item is in the queues
	created := !t.closed && t.index.CompareAndSwap(nil, i)
	t.mu.Unlock()
	if created {
		i.before.Store(t.queues.byStripe())
	}
	return created
}

// byStripe returns the hashes of all items. It visits all of them under the lock, which takes about
// 0.1 s for a million items.
func (q *queues) byStripe() *older {
	o := new(older)
	q.mu.Lock()
	defer q.mu.Unlock()
	each := func(visit func(h *Header)) {
		for _, queue := range []*queue{&q.window, &q.main} {
			for h := queue.root.next; h != &queue.root; h = h.next {
				visit(h)
			}
		}
	}
	each(func(h *Header) { o.ends[h.Stripe]++ })
	sum := uint32(0)
	for s, n := range o.ends {
		o.ends[s] = sum // the beginning, which the next loop moves to the end
		sum += n
	}
	o.hashes = make([]uint64, sum)
	each(func(h *Header) {
		o.hashes[o.ends[h.Stripe]] = h.hash
		o.ends[h.Stripe]++
	})
	return o
}

func (i *index) note(t *Tier, stable uint64, n indexed) {
	s := &i.shards[stable%indexShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		s.current = make(map[uint64]indexed)
	}
	s.current[stable] = n
	if len(s.current) < indexRecent {
		return
	}
	for stable, n := range s.previous {
		if _, again := s.current[stable]; !again && t.contains(n.hash) {
			s.current[stable] = n
		}
	}
	s.previous, s.current = s.current, make(map[uint64]indexed)
}

// contains reports whether the tier has an item under hash.
func (t *Tier) contains(hash uint64) bool {
	return t.lookup.get(hash) != nil || t.seek(hash) != nil
}

func (i *index) find(stable uint64) (n indexed, ok bool) {
	s := &i.shards[stable%indexShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok = s.current[stable]; !ok {
		n, ok = s.previous[stable]
	}
	return n, ok
}

// A Finding is the result of Look.
type Finding uint8

// The findings.
const (
	Unknown Finding = iota // the index does not cover the item's time
	None                   // certainly no item was set at or before that time
	Young                  // the value of the item may have been read after that time
	There                  // the value of the item was read before
)

// Look finds the item with this stable hash that Get would return now, without its key and
// without counting a hit. generations are those of its loader. match reports whether the key of an
// item has the stable hash. Look compares the beginning of the item's read with a time in the past:
// with written on the clock of the reads, or with age on the tier's clock. A negative age is from
// before the tier was created. The item is nil unless the finding is There.
func (t *Tier) Look(
	stable uint64, generations *Generations, written, age time.Duration, match func(*Header) bool,
) (*Header, Finding) {
	i := t.index.Load()
	if age < 0 && i == nil {
		return nil, None
	}
	if i == nil {
		return nil, Unknown
	}
	current := func(hash uint64) *Header {
		if h, _ := t.live(hash, generations); h != nil && h.Stripe == Stripe(stable) && match(h) {
			return h
		}
		return nil
	}
	before := i.before.Load() // first: an item that is replaced since is found among the others
	if entry, ok := i.find(stable); ok {
		return finding(current(entry.hash), entry.read > written)
	}
	switch {
	case age < 0:
		return nil, None
	case before == nil:
		return nil, Unknown
	}
	for _, hash := range before.of(Stripe(stable)) {
		if h := current(hash); h != nil {
			return finding(h, i.since > age)
		}
	}
	return nil, None
}

func finding(h *Header, young bool) (*Header, Finding) {
	switch {
	case h == nil:
		return nil, None
	case young:
		return nil, Young
	default:
		return h, There
	}
}

// Age returns the age of the tier.
func (t *Tier) Age() time.Duration { return time.Since(t.start) }
