package bloom

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Add adds a key. When it has returned nil, no lookup by this filter that begins then misses it; if
// it is shared, none in another process that begins more than Options.MaxStaleness later, as a rule
// some milliseconds. If it returns an error, which only a shared one does, try again: it may be
// repeated.
//
// For a row that is not committed yet, Add is not enough: see Admit.
func (l *Local) Add(ctx context.Context, key string) error { return l.AddMany(ctx, []string{key}) }

// AddMany is Add for many keys; if it is shared, in few trips.
func (l *Local) AddMany(ctx context.Context, keys []string) error {
	_, err := l.add(ctx, keys)
	return err
}

// Admit is for keys whose rows are being inserted: see Redis.Admit. It is called before the
// transaction commits, and committed after that. If the filter is shared, both announce the keys:
// another process may begin to rebuild its own filter between the two.
func (l *Local) Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error) {
	keys = slices.Clone(keys)
	written, err := l.add(ctx, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if l.holds.Load() == written && l.shared == nil {
			return nil
		}
		return l.AddMany(ctx, keys)
	}, nil
}

// add answers what all keys were written to.
func (l *Local) add(ctx context.Context, keys []string) (*holding, error) {
	hashes := make([]hash, len(keys))
	for i, key := range keys {
		hashes[i] = hashOf(key)
	}
	written := l.write(hashes, nil)
	if l.shared != nil {
		if err := l.shared.tell(ctx, hashes); err != nil {
			l.counts.addErrors.Add(1)
			return nil, err
		}
		written = l.write(hashes, written)
	}
	l.counts.added.Add(int64(len(keys)))
	if g := written.active; g != nil {
		l.filled(g)
	}
	return written, nil
}

// write writes keys to all generations but those of written, and again if they have changed
// meanwhile: a generation may have been begun, or have become the active one. A rebuild that begins
// one later finds all that is written here in what it reads, or committed sees it.
func (l *Local) write(hashes []hash, written *holding) *holding {
	for {
		h := l.holds.Load()
		if h == written {
			return h
		}
		for _, g := range h.generations() {
			if g != nil && !slices.Contains(written.generations(), g) {
				g.addAll(hashes)
			}
		}
		if h.additions != nil {
			h.additions.note(hashes)
		}
		written = h
	}
}

func (h *holding) generations() []*localGeneration {
	if h == nil {
		return nil
	}
	return []*localGeneration{h.active, h.building, h.loaded}
}

// change replaces the holding by what edit makes of it, again if it has changed meanwhile, unless
// edit answers false.
func (l *Local) change(edit func(*holding) bool) bool {
	for {
		before := l.holds.Load()
		after := *before
		if !edit(&after) {
			return false
		}
		if l.holds.CompareAndSwap(before, &after) {
			return true
		}
	}
}

// localGeneration is the bits of a Local from one rebuild to the next.
type localGeneration struct {
	*bitmap
	id            string // of no other of this process
	begun         time.Time
	capacity      uint64
	rate          float64
	set           atomic.Uint64 // bits
	full          uint64        // with more bits set it holds more than its capacity
	told          atomic.Bool   // OverCapacity was called for it
	deletedBefore int64         // of Local.deleted, when it was begun
	listed        []string      // some keys of its source; set before it answers
}

func (l *Local) newGeneration(b *bitmap, capacity uint64, rate float64) *localGeneration {
	full := float64(b.total()) * -math.Expm1(-float64(b.k)*(float64(capacity)+0.5)/float64(b.total()))
	return &localGeneration{bitmap: b, id: newID(), begun: time.Now(), capacity: capacity, rate: rate, full: uint64(full), deletedBefore: l.deleted.Load()}
}

func (g *localGeneration) addAll(hashes []hash) {
	set := 0
	for i := range hashes {
		set += g.add(&hashes[i])
	}
	if set > 0 {
		g.set.Add(uint64(set))
	}
}

// filled looks whether a generation holds more than it was made for.
func (l *Local) filled(g *localGeneration) {
	if l.options.OverCapacity != nil && g.set.Load() > g.full && g.told.CompareAndSwap(false, true) {
		l.options.OverCapacity(l.state(g))
	}
}

// additions are the keys that are added while a file is read.
type additions struct {
	mu     sync.Mutex
	hashes []hash
}

func (j *additions) note(hashes []hash) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.hashes = append(j.hashes, hashes...)
}

func (j *additions) all() []hash {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.hashes
}
