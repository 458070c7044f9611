package source

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/limit"
)

// A load may ask other loaders. While it waits for what they load it lends its place among
// MaxLoads, so that chains of loads never wait for each other; and where it would wait for itself
// it is told so at once.

// load is a call of a load function, as the contexts know it that are made from that call's.
type load struct {
	ctx     context.Context // the call's own
	pass    *limit.Pass
	source  *Source
	texts   []string
	waiting func() // called when it begins to wait for others; may be nil

	mu  sync.Mutex
	ttl time.Duration // as SetTTL has it; 0: not set
}

type loadKey struct{}

// SetTTL sets how long what the load returns whose context ctx is, or is made from, may stay
// cached. For any other ctx it does nothing.
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

// loadOf is the call whose context ctx is made from; nil if there is none, or it has returned.
func loadOf(ctx context.Context) *load {
	if own, ok := ctx.Value(loadKey{}).(*load); ok && own.pass.Live() {
		return own
	}
	return nil
}

// passOf is the pass of the call whose context ctx is made from, or nil.
func passOf(ctx context.Context) *limit.Pass {
	if own := loadOf(ctx); own != nil {
		return own.pass
	}
	return nil
}

// Await is called when a caller with this context is about to wait for reads of n keys of this
// source. text returns the text of a key, or false for one that is not waited for. If over is not
// nil, it is called when the wait ends, before the caller goes on. If refused is not nil, it has
// fault.LoadCycle in the places of the keys that the caller must not wait for: those that its own
// load loads, or that wait for it. apart says that the keys are loaded by themselves; then the keys
// of batches may be waited for, see MayLoadApart.
func (s *Source) Await(ctx context.Context, n int, separate bool, text func(i int) (string, bool)) (done func(), refused []error) {
	own := loadOf(ctx)
	if own == nil {
		return nil, nil
	}
	wanted := make([]sourceKey, n) // zero: not to be waited for
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

// MayLoadApart reports whether the load that ctx is of may have a key loaded by itself, in a call
// for that key alone, although it must not wait for the read of that key. It may if only batches
// hold the key up: a batch has many keys, and perhaps none of those that need this key is needed by
// it. If one is, the key's own call asks for that one in turn, and so on until a key is asked for
// by its own call.
func (s *Source) MayLoadSeparately(ctx context.Context, text string) bool {
	own := loadOf(ctx)
	return own != nil && waits.blocking(own, sourceKey{s, text}) != blocked
}

// asked is a key of a source.
type sourceKey struct {
	source *Source
	text   string
}

// waits are the loads of all sources of this process that wait for others.
var waits waitGraph

// waitGraph knows which loads wait for which keys. It has nothing of loads that ask nobody.
type waitGraph struct {
	mu      sync.Mutex
	waiters map[sourceKey][]*load
}

// enter notes that own waits for keys, except zero ones and cycles. The cycles, by their places,
// are the keys whose load is own, or waits for own, itself or by others: such a wait would never
// end. For keys that are loaded apart, calls for several keys do not count.
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

// standing says whether the load of a key can end before another load does.
type blocking uint8

const (
	notBlocked     blocking = iota
	blockedInBatch          // a call for this key and for others cannot
	blocked                 // a call for this key alone cannot
)

func (w *waitGraph) blocking(own *load, key sourceKey) blocking {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.allBlocked(own)[key]
}

// allHeldUp returns the keys whose loads cannot end before own does.
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

// leave ends what enter has noted.
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
