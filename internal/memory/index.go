package memory

import (
	"sync"
	"sync/atomic"
	"time"
)

// index finds items by the stable hashes of their keys, for other processes that ask about them
// and do not have the keys. The first question creates it. It is dropped after a time without
// questions, because it slows each Set a little. It knows only items that have been set since it
// was created. The caller must check that an item found here is live.
//
// The number of entries is bounded by the items in the tier plus indexRecent per shard. Older
// entries are dropped when the tier no longer holds their items.
type index struct {
	since    time.Duration // creation time on the tier's clock
	complete atomic.Bool   // nothing was Set before the index was created
	shards   [indexShards]struct {
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

// Index turns the index that Look needs on or off. It reports whether this changed anything.
func (t *Tier) Index(on bool) bool {
	if !on {
		return t.index.Swap(nil) != nil
	}
	i := &index{since: time.Since(t.start)}
	if t.index.Load() != nil || !t.index.CompareAndSwap(nil, i) {
		return false
	}
	if !t.used.Load() { // after the index is stored: a concurrent Note either finds it, or has set used
		i.complete.Store(true)
	}
	return true
}

// Note records the item that is about to be Set under hash, and when its read began, so that Look
// finds it. The caller calls Note before Set.
func (t *Tier) Note(hash, stable uint64, read time.Duration) {
	if !t.used.Load() {
		t.used.Store(true) // before the index is loaded: see Index
	}
	if i := t.index.Load(); i != nil {
		i.note(t, stable, indexed{hash, read})
	}
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

// Look finds the item with this stable hash that Get would return now, without its key and
// without counting a hit. generations are those of its loader, and longest is the maximum life of
// its items. read is the time when the item's read began. If there is no item, none reports
// whether certainly no item was set at or before the given age of the tier. A negative age is
// from before the tier was created.
func (t *Tier) Look(
	stable uint64, generations *Generations, longest, age time.Duration,
) (h *Header, read time.Duration, none bool) {
	i := t.index.Load()
	var entry indexed
	ok := false
	if i != nil {
		entry, ok = i.find(stable)
	}
	if !ok {
		return nil, 0, age < 0 || i != nil && (time.Since(t.start)-i.since >= longest || i.complete.Load())
	}
	if h, _ = t.live(entry.hash, generations); h == nil || h.Stripe != Stripe(stable) {
		return nil, 0, true
	}
	return h, entry.read, false
}

// Age returns the age of the tier.
func (t *Tier) Age() time.Duration { return time.Since(t.start) }
