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
// source, whose texts text tells; those for which it answers false are not waited for. over, if not
// nil, is to be called when it waits no longer, and before it goes on; refused, if not nil, has
// fault.LoadCycle in the places of those that it must not wait for.
func (s *Source) Await(ctx context.Context, n int, text func(i int) (string, bool)) (over func(), refused []error) {
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
	noted, cycles := waits.enter(own, wanted)
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

// enter notes that own waits for keys, but for zero ones, and for cycles: those, by their places,
// whose load is own, or waits for own, itself or by others. Such a wait would never end.
func (g *waitGraph) enter(own *load, keys []asked) (noted []asked, cycles []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.on == nil {
		g.on = make(map[asked][]*load)
	}
	held := g.heldUp(own)
	for i, key := range keys {
		switch {
		case key == asked{}:
		case held[key]:
			cycles = append(cycles, i)
		default:
			g.on[key] = append(g.on[key], own)
			noted = append(noted, key)
		}
	}
	return noted, cycles
}

// heldUp is the keys whose loads cannot end before own does.
func (g *waitGraph) heldUp(own *load) map[asked]bool {
	keys := make(map[asked]bool)
	seen := map[*load]bool{own: true}
	for next := []*load{own}; len(next) > 0; {
		of := next[0]
		next = next[1:]
		for _, text := range of.texts {
			key := asked{of.source, text}
			keys[key] = true
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
