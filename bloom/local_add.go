package bloom

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Add adds a key. A lookup by this filter that begins after Add has returned finds the key. The error
// is always nil.
//
// For a row that is not committed yet, Add is not enough: see Admit.
func (l *Local) Add(ctx context.Context, key string) error { return l.AddMany(ctx, []string{key}) }

// AddMany is Add for many keys.
func (l *Local) AddMany(_ context.Context, keys []string) error {
	l.add(keys)
	return nil
}

// Admit adds keys whose rows are being inserted: see Redis.Admit. Call Admit before the transaction
// commits, and committed after that. The errors of both are always nil.
func (l *Local) Admit(_ context.Context, keys []string) (committed func(context.Context) error, err error) {
	keys = slices.Clone(keys)
	written := l.add(keys)
	return func(context.Context) error {
		if l.holds.Load() != written {
			l.add(keys)
		}
		return nil
	}, nil
}

// add writes keys to all generations, and again if these have changed meanwhile: a generation may
// have been begun, or have become the active one. A rebuild that begins later reads all that is
// written here from its source, or committed adds it again. add returns what the keys were written to.
func (l *Local) add(keys []string) (written *holding) {
	hashes := hashesOf(keys)
	for h := l.holds.Load(); h != written; h = l.holds.Load() {
		for _, g := range h.generations() {
			if g != nil && !slices.Contains(written.generations(), g) {
				g.addAll(hashes)
			}
		}
		written = h
	}
	l.counts.added.Add(int64(len(keys)))
	if g := written.active; g != nil {
		l.filled(g)
	}
	return written
}

func (h *holding) generations() []*localGeneration {
	if h == nil {
		return nil
	}
	return []*localGeneration{h.active, h.building}
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
	*bitmap              // nil while Load reads it
	id            string // of no other of this process
	begun         time.Time
	capacity      uint64
	rate          float64
	set           atomic.Uint64 // bits
	told          atomic.Bool   // OverCapacity was called for it
	deletedBefore int64         // of Local.deleted, when it was begun
	listed        []string      // some keys of its source; set before it serves

	mu    sync.Mutex
	early []hash // which were added before there was a bitmap
}

func (l *Local) newGeneration(b *bitmap, capacity uint64, rate float64) *localGeneration {
	return &localGeneration{bitmap: b, id: newID(), begun: time.Now(), capacity: capacity, rate: rate, deletedBefore: l.deleted.Load()}
}

func (g *localGeneration) addAll(hashes []hash) {
	if g.bitmap == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.early = append(g.early, hashes...)
		return
	}
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
	if l.options.OverCapacity != nil && g.estimate(g.set.Load()) > g.capacity && g.told.CompareAndSwap(false, true) {
		l.options.OverCapacity(l.state(g))
	}
}

// noted returns the keys that were added before there was a bitmap.
func (g *localGeneration) noted() []hash {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.early
}
