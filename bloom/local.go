package bloom

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Local is a filter in this process's memory, which takes State.Bits / 8 bytes (twice that while it
// is being rebuilt). It is safe for concurrent use, and a lookup takes nanoseconds.
//
// A filter of NewLocal knows the keys that this process has added, and read from its source. It is
// for a set that no other process adds to, or which does not change. Rows that others insert it
// would hide; use NewShared then, or a Replica.
//
// A Local answers "maybe" until a Rebuild, or Load, has completed it. Keys that were added before
// that are not in it unless the source has them. The filter is gone with the process: see Save.
type Local struct {
	options  Options
	capacity uint64 // of the next generation, at this rate
	rate     float64

	holds    atomic.Pointer[holding]
	shared   *sharing // nil: with nobody
	looks    looks
	counts   counts
	checkers checkers
	judged   judged

	hiding     atomic.Pointer[hiding]
	deleted    atomic.Int64 // rows, since the start
	took       atomic.Int64 // the last rebuild, in nanoseconds
	closed     atomic.Bool
	woken      chan struct{} // Maintain is to look
	loading    sync.Mutex
	rebuilding sync.Mutex
}

// holding is what a Local has at a time. It is replaced as a whole, so that a caller that adds
// finds out whether a generation has come meanwhile.
type holding struct {
	active    *localGeneration // answers; nil: nothing has completed one, or it has missed something since
	building  *localGeneration // a rebuild fills it
	loaded    *localGeneration // of a file, soon to be the active one
	additions *additions       // what is added while a file is read

	abandoned bool // a rebuild has failed: Maintain builds it anew
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

// Close ends Maintain, and a Rebuild with the next keys that it adds. If the filter is shared,
// Close also ends its background work; the filter then answers "maybe". Close may be called again,
// and always returns nil.
func (l *Local) Close() error {
	l.closed.Store(true)
	if l.shared != nil {
		l.shared.close()
	}
	l.wake()
	return nil
}

// MightContain tells whether a key may have been added: false means that it certainly was not. The
// answer is true, and counted (Stats.Unknown), where the filter is not complete, or, if it is
// shared, cannot be sure to have heard of all keys that others have added up to
// Options.MaxStaleness ago. MightContain waits for nothing, and takes no context into account; the
// error is always nil.
func (l *Local) MightContain(_ context.Context, key string) (bool, error) {
	return l.has(key), nil
}

// MightContainNow is MightContain without the context and the error. known is always true: there is
// nobody else to ask. A cacheaside.Loader calls MightContainNow.
func (l *Local) MightContainNow(key string) (may, known bool) { return l.has(key), true }

// has says "no" only by what is trusted.
func (l *Local) has(key string) bool {
	trust := l.trust()
	g := l.holds.Load().active
	if g == nil {
		l.counts.lost.Add(1)
		return true
	}
	h := hashOf(key)
	maybe := g.has(&h)
	if !maybe && !l.trusts(trust) {
		l.counts.failed.Add(1)
		return true
	}
	l.looks.count(maybe)
	return maybe
}

// MightContainMany is MightContain for many keys.
func (l *Local) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	return l.many(keys, l.trust()), nil
}

// many answers for keys, if it is shared by the trust that was read before.
func (l *Local) many(keys []string, trust int64) []bool {
	maybe := make([]bool, len(keys))
	g := l.holds.Load().active
	absent := 0
	for i, key := range keys {
		h := hashOf(key)
		if maybe[i] = g == nil || g.has(&h); !maybe[i] {
			absent++
		}
	}
	switch {
	case g == nil:
		l.counts.lost.Add(int64(len(keys)))
	case absent > 0 && !l.trusts(trust):
		for i := range maybe {
			maybe[i] = true
		}
		l.counts.failed.Add(int64(len(keys)))
	default:
		l.counts.absent.Add(int64(absent))
		l.counts.present.Add(int64(len(keys) - absent))
	}
	return maybe
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
