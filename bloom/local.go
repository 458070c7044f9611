package bloom

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Local is a filter in this process's memory, which takes State.Bits / 8 bytes (twice that while it
// is being rebuilt). It is safe for concurrent use, and a lookup takes nanoseconds.
//
// A Local knows the keys that this process has added, and those that it has read from its source.
// It is for a set that no other process adds to, or that does not change. A Local hides rows that
// other processes insert: use a Replica if there are any.
//
// A Local answers "maybe" until a Rebuild, or Load, has completed it. Keys that were added before
// that are not in it unless the source has them. The filter is gone with the process: see Save.
type Local struct {
	options  Options
	capacity uint64 // of the next generation, at this rate
	rate     float64

	holds    atomic.Pointer[holding]
	looks    looks
	counts   counts
	checkers checkers
	judged   judged

	hiding     atomic.Pointer[hiding]
	deleted    atomic.Int64 // rows, since the start
	took       atomic.Int64 // the last rebuild, in nanoseconds
	closed     atomic.Bool
	woken      chan struct{} // Maintain is to look
	rebuilding sync.Mutex    // held by a Rebuild or a Load
}

// holding is what a Local has at a time. It is replaced as a whole, so that a caller that adds
// finds out whether a generation has come meanwhile.
type holding struct {
	active    *localGeneration // serves; nil: nothing has completed one, or it was dropped since
	building  *localGeneration // which a Rebuild or a Load fills
	abandoned bool             // a rebuild has failed: Maintain builds it anew
}

// unbuilt tells whether a rebuild has not come to its end.
func (h *holding) unbuilt() bool { return h.building != nil || h.abandoned }

// NewLocal makes a filter for about capacity keys at this rate of false positives, such as 0.01.
// NewLocal does no I/O. nil options are the defaults; only OverCapacity has a meaning here.
func NewLocal(capacity uint64, rate float64, options *Options) (*Local, error) {
	l := &Local{options: options.withDefaults(), capacity: capacity, rate: rate, woken: make(chan struct{}, 1)}
	l.holds.Store(&holding{})
	if err := l.options.check(); err != nil {
		return nil, fmt.Errorf("bloom: %w", err)
	}
	if _, err := shapeFor(capacity, rate); err != nil {
		return nil, fmt.Errorf("bloom: %w", err)
	}
	return l, nil
}

// Close ends Maintain, and a Rebuild with the next keys that it adds. The filter itself stays usable.
// Close may be called again, and always returns nil.
func (l *Local) Close() error {
	l.closed.Store(true)
	l.wake()
	return nil
}

// MightContain reports whether a key may have been added: false means that it certainly was not.
// While the filter is not complete, the result is true and is counted (Stats.Unknown). MightContain
// does no I/O and ignores the context. The error is always nil.
func (l *Local) MightContain(_ context.Context, key string) (bool, error) {
	return l.has(key), nil
}

// MightContainNow is MightContain without the context and the error. known is always true. A
// cacheaside.Loader calls MightContainNow.
func (l *Local) MightContainNow(key string) (may, known bool) { return l.has(key), true }

func (l *Local) has(key string) bool {
	g := l.holds.Load().active
	if g == nil {
		l.counts.lost.Add(1)
		return true
	}
	h := hashOf(key)
	maybe := g.has(&h)
	l.looks.count(maybe)
	return maybe
}

// MightContainMany is MightContain for many keys.
func (l *Local) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	maybe, unsure := make([]bool, len(keys)), 0
	g := l.holds.Load().active
	if g == nil {
		unsure = len(keys)
	}
	for i, key := range keys {
		h := hashOf(key)
		maybe[i] = g == nil || g.has(&h)
	}
	l.counts.looked(maybe, unsure, nil)
	return maybe, nil
}

// NotFound tells how many keys that the filter took for present were not there: its false
// positives.
func (l *Local) NotFound(keys int) { l.counts.falsePositives.Add(int64(keys)) }

// Deleted tells how many rows were deleted, whose keys stay in the filter until the next
// Rebuild. The error is always nil.
func (l *Local) Deleted(_ context.Context, rows int) error {
	l.deleted.Add(int64(rows))
	return nil
}

// Stats returns what has been counted since the start.
func (l *Local) Stats() Stats {
	s := l.counts.stats()
	l.looks.addTo(&s)
	return s
}

// State tells what has become of the filter. The error is always nil.
func (l *Local) State(context.Context) (State, error) {
	h := l.holds.Load()
	if h.active == nil {
		return State{Building: h.unbuilt()}, nil
	}
	s := l.state(h.active)
	s.Building = h.unbuilt()
	return s, nil
}

func (l *Local) state(g *localGeneration) State {
	set := g.set.Load()
	return State{
		Built: true, Capacity: g.capacity, Rate: g.rate, Bits: g.total(), SetBits: set, Keys: g.estimate(set),
		Deleted: uint64(max(0, l.deleted.Load()-g.deletedBefore)),
	}
}

// Hidden reports a key that the filter has refused although its row exists: see Redis.Hidden. It
// concerns this process only.
func (l *Local) Hidden(ctx context.Context, key string) error {
	if l.has(key) {
		return nil
	}
	g := l.holds.Load().active
	if g == nil {
		return nil
	}
	l.counts.hidden.Add(1)
	now, before := time.Now(), l.hiding.Load()
	if before.recent(now) {
		listed := func() ([]string, error) { return g.listed, nil }
		why, err := l.judged.wrong(ctx, g.id, g.begun, &l.checkers, listed, g.holds)
		if err != nil {
			return fmt.Errorf("bloom: %w", err)
		}
		if why == nil {
			l.hiding.CompareAndSwap(before, before.renewed(now))
			return nil
		}
	}
	l.hiding.Store(before.again(now, hashOf(key)))
	l.change(func(h *holding) bool {
		h.active = nil
		return true
	})
	l.wake()
	return nil
}

// CheckRebuilt makes Rebuild and Load call check with each filter that they build or read, before
// the filter takes its place: see Redis.CheckRebuilt.
func (l *Local) CheckRebuilt(check Check) (remove func()) {
	return l.checkers.add(check)
}
