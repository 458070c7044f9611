package cacheaside

import (
	"context"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/limit"
)

// A load may ask other loaders. While it waits for what they load it lends its place among
// MaxLoads, so that chains of loads never wait for each other; and where it would wait for itself
// it is told so at once.

// loadCall is a call of a load function, as the contexts know it that are made from that call's.
type loadCall struct {
	ctx     context.Context // the call's own
	pass    *limit.Pass
	keys    func() []asked
	waiting func() // called when it begins to wait for others; may be nil

	mu  sync.Mutex
	ttl time.Duration // as SetTTL has it; 0: not set
}

type loadingKey struct{}

// loadingOf is the call whose context ctx is made from; nil if there is none, or it has returned.
func loadingOf(ctx context.Context) *loadCall {
	if own, ok := ctx.Value(loadingKey{}).(*loadCall); ok && own.pass.Live() {
		return own
	}
	return nil
}

// passOf is the pass of the call whose context ctx is made from, or nil.
func passOf(ctx context.Context) *limit.Pass {
	if own := loadingOf(ctx); own != nil {
		return own.pass
	}
	return nil
}

// await is called when somebody with this context is about to wait for rounds: see flight.Hooks.
func (l *Loader[K, V]) await(ctx context.Context, rounds []*round[K, V]) (over func(), refused []error) {
	own := loadingOf(ctx)
	if own == nil {
		return nil, nil
	}
	wanted := make([]asked, len(rounds)) // zero: not to be waited for
	for i, r := range rounds {
		if r != nil && !r.Landed() {
			wanted[i] = asked{l, r.Key}
		}
	}
	noted, cycles := waits.enter(own, wanted)
	for _, i := range cycles {
		if refused == nil {
			refused = make([]error, len(rounds))
		}
		refused[i] = ErrLoadCycle
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

// asked is a key of a loader.
type asked struct{ loader, key any }

func (l *Loader[K, V]) asked(keys []K) []asked {
	out := make([]asked, len(keys))
	for i, key := range keys {
		out[i] = asked{l, key}
	}
	return out
}

// waits are the loads of all caches of this process that wait for others.
var waits waitGraph

// waitGraph knows which loads wait for which keys. It has nothing of loads that ask nobody.
type waitGraph struct {
	mu sync.Mutex
	on map[asked][]*loadCall
}

// enter notes that own waits for keys, but for zero ones, and for cycles: those, by their places,
// whose load is own, or waits for own, itself or by others. Such a wait would never end.
func (g *waitGraph) enter(own *loadCall, keys []asked) (noted []asked, cycles []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.on == nil {
		g.on = make(map[asked][]*loadCall)
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
func (g *waitGraph) heldUp(own *loadCall) map[asked]bool {
	keys := make(map[asked]bool)
	seen := map[*loadCall]bool{own: true}
	for next := []*loadCall{own}; len(next) > 0; {
		of := next[0]
		next = next[1:]
		for _, key := range of.keys() {
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
func (g *waitGraph) leave(own *loadCall, keys []asked) {
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
