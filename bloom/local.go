package bloom

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Local is a filter in this process's memory, which takes State.Bits / 8 bytes (twice that while it
// is being rebuilt). It is safe for concurrent use, and a lookup takes nanoseconds.
//
// A Local knows only the keys that this process has added or read from its source. It hides rows
// that other processes insert: use a Replica if there are any. Until a Rebuild or Load has
// completed it, a Local returns "maybe" for all keys. Keys that were added before that are not in
// it unless the source has them. The filter ends with the process: see Save.
type Local struct {
	capacity uint64 // of the next generation, at this rate
	rate     float64

	current     atomic.Pointer[localState]
	lookups     lookupCounters
	counts      counts
	checkers    checkers
	sourceCheck sourceCheck

	deleted    atomic.Int64 // rows, since the start
	closed     atomic.Bool
	wakeup     chan struct{} // Maintain is to look
	rebuilding sync.Mutex    // held by a Rebuild or a Load
}

// holding is what a Local has at a time. It is replaced as a whole, so that a caller that adds
// finds out whether a generation has come meanwhile.
type localState struct {
	active        *localGeneration // serves; nil: nothing has completed one, or it was dropped since
	building      *localGeneration // which a Rebuild or a Load fills
	falseNegative *falseNegative   // of the generation that was dropped last
}

// NewLocal makes a filter for about capacity keys at this rate of false positives, such as 0.01.
// NewLocal does no I/O.
func NewLocal(capacity uint64, rate float64) (*Local, error) {
	l := &Local{capacity: capacity, rate: rate, wakeup: make(chan struct{}, 1)}
	l.current.Store(&localState{})
	if _, err := shapeFor(capacity, rate); err != nil {
		return nil, fmt.Errorf("bloom: %w", err)
	}
	return l, nil
}

// Close ends Maintain, and a Rebuild with the next keys that it adds. The filter itself stays
// usable. Close may be called again, and always returns nil.
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
	g := l.current.Load().active
	if g == nil {
		l.counts.lost.Add(1)
		return true
	}
	h := hashOf(key)
	maybe := g.has(&h)
	l.lookups.count(maybe)
	return maybe
}

// MightContainMany is MightContain for many keys.
func (l *Local) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	maybe, unknown := make([]bool, len(keys)), 0
	g := l.current.Load().active
	if g == nil {
		unknown = len(keys)
	}
	for i, key := range keys {
		h := hashOf(key)
		maybe[i] = g == nil || g.has(&h)
	}
	l.counts.countLookups(maybe, unknown, nil)
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
	l.lookups.addTo(&s)
	return s
}

// State tells what has become of the filter. The error is always nil.
func (l *Local) State(context.Context) (State, error) {
	h := l.current.Load()
	var s State
	if h.active != nil {
		s = l.state(h.active)
	}
	s.Building = h.building != nil
	return s, nil
}

func (l *Local) state(g *localGeneration) State {
	set := g.count()
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
	g := l.current.Load().active
	if g == nil {
		return nil
	}
	l.counts.hidden.Add(1)
	now := time.Now()
	if l.current.Load().falseNegative.recent(now) {
		why, err := l.sourceCheck.run(ctx, g.id, g.begun, &l.checkers, g.sampledKeys, g.holds)
		if err != nil {
			return fmt.Errorf("bloom: %w", err)
		}
		if why == nil {
			l.change(func(h *localState) { h.falseNegative = h.falseNegative.renewed(now) })
			return nil
		}
	}
	l.change(func(h *localState) { h.active, h.falseNegative = nil, h.falseNegative.next(now, hashOf(key)) })
	l.wake()
	return nil
}

// CheckRebuilt makes Rebuild and Load call check with each filter that they build or read, before
// the filter takes its place: see Redis.CheckRebuilt.
func (l *Local) CheckRebuilt(check Check) (remove func()) {
	return l.checkers.add(check)
}

// Add adds a key. A lookup by this filter that begins after Add has returned finds the key. The
// error is always nil.
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
		if l.current.Load() != written {
			l.add(keys)
		}
		return nil
	}, nil
}

// add writes keys to all generations, and again if these have changed: a generation may have been
// begun. A rebuild that begins later reads these keys from its source, or committed adds them
// again. add returns what the keys were written to.
func (l *Local) add(keys []string) (written *localState) {
	hashes := hashesOf(keys)
	for h := l.current.Load(); h != written; h = l.current.Load() {
		for _, g := range h.generations() {
			if g != nil && !slices.Contains(written.generations(), g) {
				g.addAll(hashes)
			}
		}
		written = h
	}
	l.counts.added.Add(int64(len(keys)))
	return written
}

func (l *localState) generations() []*localGeneration {
	if l == nil {
		return nil
	}
	return []*localGeneration{l.active, l.building}
}

// change replaces the holding by what edit makes of it, and tries again if it has changed in the
// meantime.
func (l *Local) change(edit func(*localState)) {
	for {
		before := l.current.Load()
		after := *before
		edit(&after)
		if l.current.CompareAndSwap(before, &after) {
			return
		}
	}
}

// localGeneration is the bits of a Local from one rebuild to the next.
type localGeneration struct {
	*bitmap                // nil while Load reads it
	id              string // of no other of this process
	begun           time.Time
	capacity        uint64
	rate            float64
	deletedBefore   int64         // of Local.deleted, when it was begun
	sampledKeys     []string      // some keys of its source; set before it serves
	rebuildTime     time.Duration // its rebuild; set before it serves
	falseNegativeID string        // the last drop of a generation, when this one was begun

	mu    sync.Mutex
	early []hash // which were added before there was a bitmap
}

func (l *Local) newGeneration(b *bitmap, capacity uint64, rate float64) *localGeneration {
	return &localGeneration{bitmap: b, id: newID(), begun: time.Now(), capacity: capacity, rate: rate, deletedBefore: l.deleted.Load()}
}

func (l *localGeneration) addAll(hashes []hash) {
	if l.bitmap == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.early = append(l.early, hashes...)
		return
	}
	for i := range hashes {
		l.add(&hashes[i])
	}
}

// holds reports for each of keys whether the generation may hold it.
func (l *localGeneration) holds(_ context.Context, keys []string) ([]bool, error) {
	holds := make([]bool, len(keys))
	for i, h := range hashesOf(keys) {
		holds[i] = l.has(&h)
	}
	return holds, nil
}

// noted returns the keys that were added before there was a bitmap.
func (l *localGeneration) earlyHashes() []hash {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.early
}

func (l *Local) wake() {
	select {
	case l.wakeup <- struct{}{}:
	default:
	}
}
