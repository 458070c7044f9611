package bloom

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/wording"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// Local is a filter in this process's memory. It takes State.Bits / 8 bytes, and twice that
// during a rebuild. A lookup takes nanoseconds. A Local is safe for concurrent use.
//
// A Local contains only the keys that this process has added or read from its source. It refuses
// the keys of rows that other processes insert: use a Replica if there are any. A Local returns
// "maybe" for all keys until a Rebuild has completed it. Keys that were added before a Rebuild are
// lost unless its source contains them. The filter is lost when the process ends.
type Local struct {
	capacity uint64 // of the next generation, with rate
	rate     float64

	current atomic.Pointer[localState]
	lookups lookupCounters
	counts  counts

	deleted    atomic.Int64 // number of deleted rows since the start
	closed     atomic.Bool
	wakeup     chan struct{} // requests a check by Maintain
	rebuilding sync.Mutex    // held by a Rebuild
}

// localState is the present state of a Local. It is replaced as a whole, so that a caller that
// adds keys notices when a generation has been begun.
type localState struct {
	active        *localGeneration // serves lookups; nil if none is complete, or if it was dropped
	building      *localGeneration // filled by a Rebuild
	falseNegative *falseNegative   // of the last generation that was dropped for one
}

// NewLocal creates a filter for about capacity keys with this rate of false positives, such as
// 0.01. It does no I/O.
func NewLocal(capacity uint64, rate float64) (*Local, error) {
	l := &Local{capacity: capacity, rate: rate, wakeup: make(chan struct{}, 1)}
	l.current.Store(&localState{})
	if _, err := bitmap.ShapeFor(capacity, rate); err != nil {
		return nil, wording.Errorf("bloom: %w", err)
	}
	return l, nil
}

// Close ends Maintain, and makes a Rebuild fail when it adds its next keys. The filter itself
// stays usable. Close may be called again, and always returns nil.
func (l *Local) Close() error {
	l.closed.Store(true)
	l.wake()
	return nil
}

// MightContain reports whether a key may have been added. False means that it certainly was not.
// While the filter is incomplete, the result is true, and is counted in Stats.Unknown.
// MightContain does no I/O and ignores the context. The error is always nil.
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
	h := bitmap.HashOf(key)
	maybe := g.Has(&h)
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
		h := bitmap.HashOf(key)
		maybe[i] = g == nil || g.Has(&h)
	}
	l.counts.countLookups(maybe, unknown, nil)
	return maybe, nil
}

// NotFound records the number of keys that the filter returned "maybe" for, and whose rows do not
// exist: its false positives.
func (l *Local) NotFound(keys int) { l.counts.falsePositives.Add(int64(keys)) }

// Deleted reports the number of deleted rows. Their keys stay in the filter until the next
// Rebuild. The error is always nil.
func (l *Local) Deleted(_ context.Context, rows int) error {
	l.deleted.Add(int64(rows))
	return nil
}

// Stats returns the counts since the start.
func (l *Local) Stats() Stats {
	s := l.counts.stats()
	l.lookups.addTo(&s)
	return s
}

// State returns the present state of the filter. It counts the bits that are set, which takes about
// 0.3 ms per MB. The error is always nil.
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
	set := g.Count()
	return State{
		Built: true, Capacity: g.capacity, Rate: g.rate, Bits: g.Total(), SetBits: set, Keys: g.Estimate(set),
		Deleted: uint64(max(0, l.deleted.Load()-g.deletedBefore)),
	}
}

// Hidden reports a key that the filter has refused although its row exists: see Redis.Hidden. It
// affects only this process.
func (l *Local) Hidden(_ context.Context, key string) error {
	g, reported := l.current.Load().active, bitmap.HashOf(key)
	if g == nil || g.Has(&reported) {
		return nil
	}
	l.counts.hidden.Add(1)
	now := time.Now()
	l.change(func(h *localState) {
		if h.active == g { // otherwise another report has dropped it, or it was rebuilt
			h.active, h.falseNegative = nil, h.falseNegative.next(now)
		}
	})
	l.wake()
	return nil
}

// Add adds a key. A lookup by this filter that begins after Add has returned finds the key. The
// error is always nil.
//
// For a row that is not yet committed, Add is not enough: see Inserting.
func (l *Local) Add(ctx context.Context, key string) error { return l.AddMany(ctx, []string{key}) }

// AddMany is Add for many keys.
func (l *Local) AddMany(_ context.Context, keys []string) error {
	l.add(keys)
	return nil
}

// Inserting adds keys whose rows are being inserted: see Redis.Inserting. The caller calls
// Inserting before the transaction commits, and committed after that. The errors of both are always
// nil.
func (l *Local) Inserting(_ context.Context, keys []string) (committed func(context.Context) error, err error) {
	keys = slices.Clone(keys)
	written := l.add(keys)
	return func(context.Context) error {
		if l.current.Load() != written {
			l.add(keys)
		}
		return nil
	}, nil
}

// add writes keys to all generations, and repeats that if a generation was begun in the meantime.
// A rebuild that begins later reads these keys from its source, or committed adds them again. add
// returns the state whose generations contain the keys.
func (l *Local) add(keys []string) (written *localState) {
	hashes := bitmap.HashesOf(keys)
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

// change replaces the state with the result of edit. It repeats that if the state has changed in
// the meantime.
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

// localGeneration contains the bits of a Local from one rebuild to the next.
type localGeneration struct {
	*bitmap.Bitmap
	begun         time.Time
	capacity      uint64
	rate          float64
	deletedBefore int64         // Local.deleted when it was begun
	rebuildTime   time.Duration // duration of its rebuild; set before it serves
}

func (l *Local) newGeneration(b *bitmap.Bitmap, capacity uint64, rate float64) *localGeneration {
	return &localGeneration{Bitmap: b, begun: time.Now(), capacity: capacity, rate: rate,
		deletedBefore: l.deleted.Load()}
}

func (l *localGeneration) addAll(hashes []bitmap.Hash) {
	for i := range hashes {
		l.Add(&hashes[i])
	}
}

func (l *Local) wake() {
	select {
	case l.wakeup <- struct{}{}:
	default:
	}
}
