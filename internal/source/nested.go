package source

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/limit"
)

// A load may read from other loaders. While it waits for their loads, it lends its place among
// MaxLoads, so that chains of loads do not block each other. If it would wait for itself, it gets
// an error immediately.

// A load is a call of a load function. The contexts that are derived from the call's context
// carry it.
type load struct {
	ctx     context.Context // the call's own
	pass    *limit.Pass
	source  *Source
	texts   []string
	waiting func()    // called when the load begins to wait for other loads; may be nil
	graph   waitState // guarded by the lock of waits

	mu  sync.Mutex
	ttl time.Duration // set by SetTTL; 0 if not set
}

type loadKey struct{}

// SetTTL sets the TTL of the values that a load returns. ctx is the context of that load, or
// derived from it. With any other ctx SetTTL does nothing.
func SetTTL(ctx context.Context, ttl time.Duration) {
	if l, ok := ctx.Value(loadKey{}).(*load); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ttl = ttl
	}
}

func (l *load) ttlSet() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// loadOf returns the call whose context ctx is derived from, or nil if there is none or it has
// returned.
func loadOf(ctx context.Context) *load {
	if l, ok := ctx.Value(loadKey{}).(*load); ok && l.pass.Live() {
		return l
	}
	return nil
}

// passOf returns the pass of the call whose context ctx is derived from, or nil.
func passOf(ctx context.Context) *limit.Pass {
	if l := loadOf(ctx); l != nil {
		return l.pass
	}
	return nil
}

// Await is called when a caller with this context is about to wait for reads of n keys of this
// source. text returns the text of a key, or false if the caller does not wait for it. If done is
// not nil, it is called when the wait ends, before the caller continues. If refused is not nil,
// it has fault.LoadCycle at the indexes of the keys that the caller must not wait for: keys that
// its own load loads, and keys whose loads wait for it. separate means that the keys are loaded
// separately. Then the caller may wait for keys of batches, see MayLoadSeparately.
func (s *Source) Await(
	ctx context.Context, n int, separate bool, text func(i int) (string, bool),
) (done func(), refused []error) {
	waiter := loadOf(ctx)
	if waiter == nil {
		return nil, nil
	}
	wanted := make([]sourceKey, n) // zero if the caller does not wait for it
	for i := range wanted {
		if key, ok := text(i); ok {
			wanted[i] = sourceKey{s, key}
		}
	}
	noted, cycles := waits.enter(waiter, wanted, separate)
	for _, i := range cycles {
		if refused == nil {
			refused = make([]error, n)
		}
		refused[i] = fault.LoadCycle
	}
	if len(noted) == 0 {
		return nil, refused
	}
	if waiter.waiting != nil {
		waiter.waiting()
	}
	regain := waiter.pass.Lend(waiter.ctx)
	return func() {
		waits.leave(waiter, noted)
		regain()
	}, refused
}

// MayLoadSeparately reports whether the load of ctx, which must not wait for a read of this key,
// may have the key loaded in a separate call for this key alone. It may if only batches block the
// key. A batch loads many keys, so the rows that need this key need not be rows that this key
// needs. If they are, there is a cycle. Then each separate call requests the next key of the cycle,
// until one of them requests its own key and gets an error.
func (s *Source) MayLoadSeparately(ctx context.Context, text string) bool {
	waiter := loadOf(ctx)
	return waiter != nil && waits.blocking(waiter, sourceKey{s, text}) != blocked
}

// A sourceKey is a key of a source.
type sourceKey struct {
	source *Source
	text   string
}

// waits has the loads of all sources of this process that have read from other loaders.
var waits waitGraph

// A waitGraph records which loads wait for which keys. It contains only loads that have read from
// loaders and have not ended. A load is added once, so that each of its waits costs as much as the
// chain of loads behind it, and not as much as its keys.
type waitGraph struct {
	mu      sync.Mutex
	loading map[sourceKey][]*load // the loads of a key that are in the graph
}

// waitState is the part of a load that belongs to the waitGraph.
type waitState struct {
	added, ended bool
	awaits       map[sourceKey]int // how many callers of the load wait for a key
}

// enter records that own waits for keys, except zero ones and cycles. cycles are the indexes of
// keys whose load is waiter, or waits for waiter directly or indirectly: such a wait would never
// end. If separate is set, calls for several keys do not count.
func (w *waitGraph) enter(waiter *load, keys []sourceKey, separate bool) (noted []sourceKey, cycles []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.add(waiter) {
		return nil, nil
	}
	behind := w.behind(waiter, keys)
	for i, key := range keys {
		if key == (sourceKey{}) {
			continue
		}
		switch held := w.state(key, behind); {
		case held == blocked, held == blockedInBatch && !separate:
			cycles = append(cycles, i)
		default:
			waiter.graph.awaits[key]++
			noted = append(noted, key)
		}
	}
	return noted, cycles
}

// add adds a load to the graph. It returns false if the load has ended. Then no other load waits
// for its function, which may still run after a timeout.
func (w *waitGraph) add(waiter *load) bool {
	if waiter.graph.ended || waiter.graph.added {
		return !waiter.graph.ended
	}
	if w.loading == nil {
		w.loading = make(map[sourceKey][]*load)
	}
	waiter.graph.added, waiter.graph.awaits = true, make(map[sourceKey]int)
	for _, text := range waiter.texts {
		key := sourceKey{waiter.source, text}
		w.loading[key] = append(w.loading[key], waiter)
	}
	return true
}

// end removes a load that has ended.
func (w *waitGraph) end(waiter *load) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiter.graph.ended = true
	if !waiter.graph.added {
		return
	}
	for _, text := range waiter.texts {
		key := sourceKey{waiter.source, text}
		if left := slices.DeleteFunc(w.loading[key], func(l *load) bool { return l == waiter }); len(left) > 0 {
			w.loading[key] = left
		} else {
			delete(w.loading, key)
		}
	}
}

// blocking describes whether the load of a key depends on the end of another load.
type blocking uint8

const (
	notBlocked     blocking = iota
	blockedInBatch          // a call for this key and others depends on it
	blocked                 // a call for this key alone depends on it
)

func (w *waitGraph) blocking(waiter *load, key sourceKey) blocking {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.add(waiter) {
		return notBlocked
	}
	return w.state(key, w.behind(waiter, []sourceKey{key}))
}

// state returns whether the load of a key is among loads.
func (w *waitGraph) state(key sourceKey, loads map[*load]bool) (state blocking) {
	for _, l := range w.loading[key] {
		switch {
		case !loads[l]:
		case len(l.texts) > 1:
			state = max(state, blockedInBatch)
		default:
			state = blocked
		}
	}
	return state
}

// behind returns own and those loads that cannot end before own ends, among the loads that the end
// of keys depends on.
func (w *waitGraph) behind(waiter *load, keys []sourceKey) map[*load]bool {
	waiters := make(map[*load][]*load)    // the loads that wait for a load, among those that were found
	found := map[*load]bool{waiter: true} // not searched beyond own: what it waits for does not matter
	var next []*load
	find := func(key sourceKey, waiter *load) {
		for _, l := range w.loading[key] {
			if waiter != nil {
				waiters[l] = append(waiters[l], waiter)
			}
			if !found[l] {
				found[l] = true
				next = append(next, l)
			}
		}
	}
	for _, key := range keys {
		find(key, nil)
	}
	for len(next) > 0 {
		current := next[len(next)-1]
		next = next[:len(next)-1]
		for key := range current.graph.awaits {
			find(key, current)
		}
	}
	behind := map[*load]bool{waiter: true}
	for next = append(next, waiter); len(next) > 0; {
		current := next[len(next)-1]
		next = next[:len(next)-1]
		for _, waiter := range waiters[current] {
			if !behind[waiter] {
				behind[waiter] = true
				next = append(next, waiter)
			}
		}
	}
	return behind
}

// leave removes what enter has recorded.
func (w *waitGraph) leave(waiter *load, keys []sourceKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		if waiter.graph.awaits[key]--; waiter.graph.awaits[key] == 0 {
			delete(waiter.graph.awaits, key)
		}
	}
}
