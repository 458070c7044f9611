package memory

import (
	"sync"
	"sync/atomic"
	"time"
)

// index finds items by the stable hashes of their keys, for those who do not have the keys:
// questions of other processes. It is made when the first of them comes, and given up when none
// comes any more, for it costs each Set a little. It knows the items that have been set since. An
// item that it finds is still to be looked at; of a hash that it does not know nothing was set
// since it was made.
//
// It is bounded by what the tier holds and indexRecent more: what was noted long ago goes when the
// tier does not hold it any more.
type index struct {
	since  time.Duration // on the tier's clock
	whole  atomic.Bool   // nothing was Set before
	shards [indexShards]struct {
		mu          sync.Mutex
		now, before map[uint64]noted // by stable hash
	}
}

// noted is of the item that was Set last; where two are at once, it may be of the other.
type noted struct {
	hash uint64        // the tier's own
	read time.Duration // when it began to be read, on the clock of its setter
}

const (
	indexShards = 16
	indexRecent = 4096 // of each shard; noted, whether or not the tier has it
)

// Index begins, or ends, that items can be found by Look. The answer is false if nothing has
// changed.
func (t *Tier) Index(on bool) bool {
	if !on {
		return t.index.Swap(nil) != nil
	}
	i := &index{since: time.Since(t.start)}
	if t.index.Load() != nil || !t.index.CompareAndSwap(nil, i) {
		return false
	}
	if !t.used.Load() { // after the index is there: what is Set now is either noted, or has been seen to be
		i.whole.Store(true)
	}
	return true
}

// Note makes Look find the item that is to be Set under hash, and tell when it began to be read. It
// comes before the Set.
func (t *Tier) Note(hash, stable uint64, read time.Duration) {
	if !t.used.Load() {
		t.used.Store(true) // before the index is looked for: see Index
	}
	if i := t.index.Load(); i != nil {
		i.note(t, stable, noted{hash, read})
	}
}

func (i *index) note(t *Tier, stable uint64, n noted) {
	s := &i.shards[stable%indexShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		s.now = make(map[uint64]noted)
	}
	s.now[stable] = n
	if len(s.now) < indexRecent {
		return
	}
	for stable, n := range s.before {
		if _, again := s.now[stable]; !again && t.holds(n.hash) {
			s.now[stable] = n
		}
	}
	s.before, s.now = s.now, make(map[uint64]noted)
}

// holds tells whether there is an item under hash.
func (t *Tier) holds(hash uint64) bool {
	h := t.lookup.at(hash).Load()
	return h != nil && h.hash == hash || t.seek(hash) != nil
}

func (i *index) find(stable uint64) (n noted, ok bool) {
	s := &i.shards[stable%indexShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok = s.now[stable]; !ok {
		n, ok = s.before[stable]
	}
	return n, ok
}

// Look finds the item with this stable hash that Get would return now, of the loader whose
// generations these are, and whose items live for longest at most; without its key, and without
// that counting as a hit; and when it began to be read. Without an item, none tells whether there
// certainly is none that was set when the tier had this age, or before; a negative age is from
// before there was a tier.
func (t *Tier) Look(stable uint64, generations *Generations, longest, age time.Duration) (h *Header, read time.Duration, none bool) {
	i := t.index.Load()
	var noted noted
	ok := false
	if i != nil {
		noted, ok = i.find(stable)
	}
	if !ok {
		return nil, 0, age < 0 || i != nil && (time.Since(t.start)-i.since >= longest || i.whole.Load())
	}
	if h, _ = t.live(noted.hash, generations); h == nil || h.Stripe != Stripe(stable) {
		return nil, 0, true
	}
	return h, noted.read, false
}

// Age is how old the tier is.
func (t *Tier) Age() time.Duration { return time.Since(t.start) }
