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

func (l *load) setTTL() time.Duration {
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
func (s *Source) Await(ctx context.Context, n int, apart bool, text func(i int) (string, bool)) (over func(), refused []error) {
	own := loadOf(ctx)
	if own == nil {
		return nil, nil
	}
	wanted := make([]asked, n) // zero: not to be waited for
	for i := range wanted {
		if of, ok := text(i); ok {
			wanted[i] = asked{s, of}
		}
	}
	noted, cycles := waits.enter(own, wanted, apart)
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
	goOn := own.pass.Lend(own.ctx)
	return func() {
		waits.leave(own, noted)
		goOn()
	}, refused
}

// MayLoadApart reports whether the load that ctx is of may have a key loaded by itself, in a call
// for that key alone, although it must not wait for the read of that key. It may if only batches
// hold the key up: a batch has many keys, and perhaps none of those that need this key is needed by
// it. If one is, the key's own call asks for that one in turn, and so on until a key is asked for
// by its own call.
func (s *Source) MayLoadApart(ctx context.Context, text string) bool {
	own := loadOf(ctx)
	return own != nil && waits.heldUp(own, asked{s, text}) != heldUp
}

// asked is a key of a source.
type asked struct {
	source *Source
	text   string
}

// waits are the loads of all sources of this process that wait for others.
var waits waitGraph

// waitGraph knows which loads wait for which keys. It has nothing of loads that ask nobody.
type waitGraph struct {
	mu sync.Mutex
	on map[asked][]*load
}

// enter notes that own waits for keys, except zero ones and cycles. The cycles, by their places,
// are the keys whose load is own, or waits for own, itself or by others: such a wait would never
// end. For keys that are loaded apart, calls for several keys do not count.
func (g *waitGraph) enter(own *load, keys []asked, apart bool) (noted []asked, cycles []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.on == nil {
		g.on = make(map[asked][]*load)
	}
	held := g.allHeldUp(own)
	for i, key := range keys {
		switch {
		case key == asked{}:
		case held[key] == heldUp, held[key] == heldUpInBatch && !apart:
			cycles = append(cycles, i)
		default:
			g.on[key] = append(g.on[key], own)
			noted = append(noted, key)
		}
	}
	return noted, cycles
}

// standing says whether the load of a key can end before another load does.
type standing uint8

const (
	free          standing = iota
	heldUpInBatch          // a call for this key and for others cannot
	heldUp                 // a call for this key alone cannot
)

func (g *waitGraph) heldUp(own *load, key asked) standing {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.allHeldUp(own)[key]
}

// allHeldUp returns the keys whose loads cannot end before own does.
func (g *waitGraph) allHeldUp(own *load) map[asked]standing {
	keys := make(map[asked]standing)
	seen := map[*load]bool{own: true}
	for next := []*load{own}; len(next) > 0; {
		of := next[0]
		next = next[1:]
		how := heldUp
		if len(of.texts) > 1 {
			how = heldUpInBatch
		}
		for _, text := range of.texts {
			key := asked{of.source, text}
			keys[key] = max(keys[key], how)
			for _, waiter := range g.on[key] {
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
func (g *waitGraph) leave(own *load, keys []asked) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range keys {
		waiters := g.on[key]
		for i, w := range waiters {
			if w == own {
				waiters[i] = waiters[len(waiters)-1]
				waiters[len(waiters)-1] = nil
				waiters = waiters[:len(waiters)-1]
				break
			}
		}
		if len(waiters) == 0 {
			delete(g.on, key)
		} else {
			g.on[key] = waiters
		}
	}
}
