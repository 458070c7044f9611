package source

import (
	"context"
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
	waiting func() // called when the load begins to wait for other loads; may be nil

	mu  sync.Mutex
	ttl time.Duration // set by SetTTL; 0 if not set
}

type loadKey struct{}

// SetTTL sets the TTL of the values that a load returns. ctx is the context of that load, or
// derived from it. With any other ctx SetTTL does nothing.
func SetTTL(ctx context.Context, ttl time.Duration) {
	if own, ok := ctx.Value(loadKey{}).(*load); ok {
		own.mu.Lock()
		defer own.mu.Unlock()
		own.ttl = ttl
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
	if own, ok := ctx.Value(loadKey{}).(*load); ok && own.pass.Live() {
		return own
	}
	return nil
}

// passOf returns the pass of the call whose context ctx is derived from, or nil.
func passOf(ctx context.Context) *limit.Pass {
	if own := loadOf(ctx); own != nil {
		return own.pass
	}
	return nil
}

// Await is called when a caller with this context is about to wait for reads of n keys of this
// source. text returns the text of a key, or false if the caller does not wait for it. If done is
// not nil, it is called when the wait ends, before the caller continues. If refused is not nil,
// it has fault.LoadCycle at the indexes of the keys that the caller must not wait for: keys that
// its own load loads, and keys whose loads wait for it. separate means that the keys are loaded
// separately. Then the caller may wait for keys of batches, see MayLoadSeparately.
func (s *Source) Await(ctx context.Context, n int, separate bool, text func(i int) (string, bool)) (done func(), refused []error) {
	own := loadOf(ctx)
	if own == nil {
		return nil, nil
	}
	wanted := make([]sourceKey, n) // zero if the caller does not wait for it
	for i := range wanted {
		if of, ok := text(i); ok {
			wanted[i] = sourceKey{s, of}
		}
	}
	noted, cycles := waits.enter(own, wanted, separate)
	for _, i := range cycles {
		if refused == nil {
			refused = make([]error, n)
		}
		refused[i] = fault.LoadCycle
	}
	if len(noted) == 0 {
		return nil, refused
	}
	if own.waiting != nil {
		own.waiting()
	}
	regain := own.pass.Lend(own.ctx)
	return func() {
		waits.leave(own, noted)
		regain()
	}, refused
}

// MayLoadSeparately reports whether the load of ctx, which must not wait for a read of this key,
// may have the key loaded in a separate call for this key alone. It may if only batches block the
// key. A batch loads many keys, so the rows that need this key need not be rows that this key
// needs. If they are, there is a cycle. Then each separate call requests the next key of the cycle,
// until one of them requests its own key and gets an error.
func (s *Source) MayLoadSeparately(ctx context.Context, text string) bool {
	own := loadOf(ctx)
	return own != nil && waits.blocking(own, sourceKey{s, text}) != blocked
}

// A sourceKey is a key of a source.
type sourceKey struct {
	source *Source
	text   string
}

// waits has the loads of all sources of this process that wait for others.
var waits waitGraph

// A waitGraph records which loads wait for which keys. It does not contain loads that wait for no
// key.
type waitGraph struct {
	mu      sync.Mutex
	waiters map[sourceKey][]*load
}

// enter records that own waits for keys, except zero ones and cycles. cycles are the indexes of
// keys whose load is own, or waits for own directly or indirectly: such a wait would never end.
// If separate is set, calls for several keys do not count.
func (w *waitGraph) enter(own *load, keys []sourceKey, separate bool) (noted []sourceKey, cycles []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiters == nil {
		w.waiters = make(map[sourceKey][]*load)
	}
	held := w.allBlocked(own)
	for i, key := range keys {
		switch {
		case key == sourceKey{}:
		case held[key] == blocked, held[key] == blockedInBatch && !separate:
			cycles = append(cycles, i)
		default:
			w.waiters[key] = append(w.waiters[key], own)
			noted = append(noted, key)
		}
	}
	return noted, cycles
}

// blocking describes whether the load of a key depends on the end of another load.
type blocking uint8

const (
	notBlocked     blocking = iota
	blockedInBatch          // a call for this key and others depends on it
	blocked                 // a call for this key alone depends on it
)

func (w *waitGraph) blocking(own *load, key sourceKey) blocking {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.allBlocked(own)[key]
}

// allBlocked returns the keys whose loads cannot end before own ends.
func (w *waitGraph) allBlocked(own *load) map[sourceKey]blocking {
	keys := make(map[sourceKey]blocking)
	seen := map[*load]bool{own: true}
	for next := []*load{own}; len(next) > 0; {
		current := next[0]
		next = next[1:]
		state := blocked
		if len(current.texts) > 1 {
			state = blockedInBatch
		}
		for _, text := range current.texts {
			key := sourceKey{current.source, text}
			keys[key] = max(keys[key], state)
			for _, waiter := range w.waiters[key] {
				if !seen[waiter] {
					seen[waiter] = true
					next = append(next, waiter)
				}
			}
		}
	}
	return keys
}

// leave removes what enter has recorded.
func (w *waitGraph) leave(own *load, keys []sourceKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		waiters := w.waiters[key]
		for i, waiter := range waiters {
			if waiter == own {
				waiters[i] = waiters[len(waiters)-1]
				waiters[len(waiters)-1] = nil
				waiters = waiters[:len(waiters)-1]
				break
			}
		}
		if len(waiters) == 0 {
			delete(w.waiters, key)
		} else {
			w.waiters[key] = waiters
		}
	}
}
