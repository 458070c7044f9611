// Package flight lets concurrent callers of one key share one result. A round is one shared
// lookup of a key, by all callers that asked before it started.
//
// A caller that comes later gathers for the next round, which starts when this one has ended. So
// no caller gets a value that was read before it asked, although the value is read only once for
// all callers of a round. (In a singleflight, callers join a lookup in progress. There a caller
// that comes after an invalidation can get a value from before the invalidation.)
//
// There are two exceptions. As long as a flight has read no part of its result, it may take in the
// callers that have gathered (TakeIn). And a result may be shared with callers that have gathered,
// if Hooks.StillValid allows it.
//
// A flight runs the rounds of several keys together: the keys of a batch, or the rounds that
// gathered for keys that completed together.
package flight

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/lent"
)

// ErrAbandoned is the cause of a flight's context when the last caller of its rounds has left.
var ErrAbandoned = errors.New("all callers have left")

// ErrNotEqual is the error of a key that does not equal itself, such as a NaN. No map can find
// such a key.
var ErrNotEqual = errors.New("the key does not equal itself")

const shards = 64

// A Group runs rounds. At any time, one round of a key may be in progress, and one may gather
// callers.
type Group[K comparable, R any] struct {
	hooks Hooks[K, R]

	seed    maphash.Seed
	shards  [shards]shard[K, R]
	flights sync.WaitGroup // and calls of Hooks.Inline

	closing sync.Once
	closed  chan struct{}
	cause   error // the argument of Close
}

// Hooks are the functions that a group calls.
type Hooks[K comparable, R any] struct {
	// Inline, if not nil, is called for new rounds that have one caller, on the caller's
	// goroutine and with the caller's context. It returns the rounds that have ended, and the
	// rest, which continue in a flight.
	Inline func(ctx context.Context, rounds []*Round[K, R]) (ended, rest []*Round[K, R])

	// Run completes all rounds of a flight. It is called after all their callers have asked, on a
	// separate goroutine, with a context that ends when the last caller has left. The context
	// carries the values of the first caller's context until that caller leaves or gets its
	// result.
	Run func(ctx context.Context, f *Flight[K, R])

	// StillValid reports whether a successful result may be shared with callers that came after
	// the round had started. It must not block.
	StillValid func(result *R) bool

	// Await, if not nil, is called with a caller's context when the caller is about to wait for
	// rounds, one for each key that it has asked for. Some rounds may be nil, or have completed.
	// done, if not nil, is called when the wait has ended, before the caller continues. refused,
	// if not nil, holds the errors of the rounds that the caller must not wait for.
	Await func(ctx context.Context, rounds []*Round[K, R]) (done func(), refused []error)

	// Caught returns the error of an Inline or Run that panicked (recovered is the value) or
	// called runtime.Goexit (recovered is nil). It is called on the same goroutine.
	Caught func(recovered any) error
}

type shard[K comparable, R any] struct {
	mu      sync.Mutex
	closed  bool
	running map[K]*Round[K, R]
}

// A Round is one shared lookup of one key. Its flight sets Result or Err before the round
// completes. They do not change afterwards.
type Round[K comparable, R any] struct {
	Key    K
	Result R
	Err    error

	asked time.Time // when the first caller came; zero for a round that did not gather
	shard *shard[K, R]
	self  [1]*Round[K, R] // saves allocations for single rounds

	waiters[K, R]
}

// Asked returns when the first caller of a round that has gathered came, and the zero time for a
// round that started immediately.
func (r *Round[K, R]) Asked() time.Time { return r.asked }

// waiters are the callers of a round, and its links to other rounds. The shard's lock guards
// them.
type waiters[K comparable, R any] struct {
	callers     int32 // number of callers that still wait
	completed   bool
	flight      *Flight[K, R] // nil while the round gathers, and during Hooks.Inline
	startedBy   *callMark     // the DoMany that has started the round
	next        *Round[K, R]  // the round that gathers behind this one
	takenIn     *Round[K, R]  // the last of the rounds that were taken into this one
	prevTakenIn *Round[K, R]  // of a round that was taken in: the one that was taken in before it
	values      *lent.Context // of the first caller of a round that gathers
	done        chan struct{} // nil if all callers wait for the flight
}

// New returns a group.
func New[K comparable, R any](hooks Hooks[K, R]) *Group[K, R] {
	g := &Group[K, R]{hooks: hooks, seed: maphash.MakeSeed(), closed: make(chan struct{})}
	for i := range g.shards {
		g.shards[i].running = make(map[K]*Round[K, R])
	}
	return g
}

func (g *Group[K, R]) shard(key K) *shard[K, R] {
	return &g.shards[maphash.Comparable(g.seed, key)%shards]
}

// Do waits for a round of key that starts after the call, or for a result that Hooks.StillValid
// allows. When ctx ends, Do returns ctx's error immediately; the round continues for its other
// callers. If this call starts a round, or is the first to gather for one, it gets the round from
// create, which may set Result.
func (g *Group[K, R]) Do(ctx context.Context, key K, create func() *Round[K, R]) (*R, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if key != key { //nolint:gocritic // see ErrNotEqual
		return nil, ErrNotEqual
	}
	s := g.shard(key)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, g.cause
	}
	if running := s.running[key]; running != nil {
		var values *lent.Context
		r := running.join(ctx, create, &values)
		s.mu.Unlock()
		defer values.End()
		return g.await(ctx, r, r.done)
	}
	r := create()
	r.Key, r.shard, r.callers = key, s, 1
	s.running[key] = r
	g.flights.Add(1)
	s.mu.Unlock()
	r.self[0] = r
	f := g.start(ctx, r.self[:])
	if f == nil {
		return &r.Result, r.Err
	}
	defer f.values.End()
	return g.await(ctx, r, f.done)
}

// DoMany is Do for many keys. The rounds that it starts run together. Keys that are equal share a
// round. DoMany returns when all rounds have completed, ctx has ended, or the group is closed.
// errs has an error for each key whose round has no result for this caller, otherwise nil. create
// is called as in Do, with the index of the key.
func (g *Group[K, R]) DoMany(
	ctx context.Context, keys []K, create func(i int) *Round[K, R],
) (rounds []*Round[K, R], errs []error) {
	rounds, errs = make([]*Round[K, R], len(keys)), make([]error, len(keys))
	if err := ctx.Err(); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return rounds, errs
	}
	shards := make([]*shard[K, R], len(keys))
	for i, key := range keys {
		shards[i] = g.shard(key) // panics for a key that cannot be hashed, before anything has started
	}
	c := manyCall[K, R]{group: g, ctx: ctx, mark: new(callMark)}
	defer func() { c.values.End() }() // a closure, because enter sets values
	for i, key := range keys {
		rounds[i], errs[i] = c.enter(shards[i], key, i, len(keys), create)
	}
	var f *Flight[K, R]
	if c.started != nil {
		if f = g.start(ctx, c.started); f != nil {
			defer f.values.End()
		}
	}
	g.awaitAll(ctx, f, rounds, errs)
	return rounds, errs
}

// A manyCall is a call of DoMany.
type manyCall[K comparable, R any] struct {
	group   *Group[K, R]
	ctx     context.Context
	mark    *callMark
	started []*Round[K, R] // the rounds that start with this call
	values  *lent.Context  // of the rounds that gather with this call
}

// A callMark identifies a call of DoMany by its address. It is not empty, because all empty
// variables may have one address.
type callMark struct{ _ byte }

// enter adds the call to a round of the i-th of n keys: to a round that gathers, or to a new one
// that will start with this call.
func (m *manyCall[K, R]) enter(s *shard[K, R], key K, i, n int, create func(int) *Round[K, R]) (*Round[K, R], error) {
	if key != key { //nolint:gocritic // see ErrNotEqual
		return nil, ErrNotEqual
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, m.group.cause
	}
	if running := s.running[key]; running != nil {
		if running.startedBy == m.mark { // the key occurs twice
			running.callers++
			return running, nil
		}
		return running.join(m.ctx, func() *Round[K, R] { return create(i) }, &m.values), nil
	}
	if m.started == nil {
		m.started = make([]*Round[K, R], 0, n-i)
		m.group.flights.Add(1)
	}
	r := create(i)
	r.Key, r.shard, r.callers, r.startedBy = key, s, 1, m.mark
	s.running[key] = r
	m.started = append(m.started, r)
	return r, nil
}

// join adds a caller to the round that gathers behind r. The shard is locked. The first caller of
// that round creates it and lends it values. The caller ends the loan when it leaves.
func (r *Round[K, R]) join(ctx context.Context, create func() *Round[K, R], values **lent.Context) *Round[K, R] {
	if r.next == nil {
		if *values == nil {
			*values = lent.Values(ctx)
		}
		r.next = create()
		r.next.Key, r.next.asked, r.next.shard = r.Key, time.Now(), r.shard
		r.next.values, r.next.done = *values, make(chan struct{})
		r.next.self[0] = r.next
	}
	r.next.callers++
	return r.next
}

// leave removes one caller from r. If a gathering round has no callers left, it is dropped. If all
// callers of all rounds of a flight have left, the flight's context is canceled, and the flight
// ends later, when Hooks.Run returns. leave reports whether r has already completed.
func (g *Group[K, R]) leave(r *Round[K, R]) (completed bool) {
	s := r.shard
	s.mu.Lock()
	if r.completed {
		s.mu.Unlock()
		return true
	}
	r.callers--
	if running := s.running[r.Key]; r.callers == 0 && running != nil && running.next == r {
		running.next = nil
	}
	f := r.flight
	abandoned := f != nil && f.callers.Add(-1) == 0
	s.mu.Unlock()
	if abandoned {
		f.abandon()
	}
	return false
}

// start starts rounds: first Hooks.Inline on the caller's goroutine, then a flight for rounds
// that have not ended. It returns nil if there are none.
func (g *Group[K, R]) start(ctx context.Context, rounds []*Round[K, R]) *Flight[K, R] {
	if g.hooks.Inline != nil {
		if rounds = g.runInline(ctx, rounds); len(rounds) == 0 {
			return nil
		}
	}
	f := g.newFlight(lent.Values(ctx), rounds)
	go g.run(f)
	return f
}

func (g *Group[K, R]) runInline(ctx context.Context, rounds []*Round[K, R]) (open []*Round[K, R]) {
	returned := false
	var ended []*Round[K, R]
	defer func() {
		if !returned {
			err := g.hooks.Caught(recover())
			for _, r := range rounds {
				r.Err = err
			}
			ended, open = rounds, nil
		}
		g.complete(nil, ended)
		if len(open) == 0 {
			g.flights.Done()
		}
	}()
	ended, open = g.hooks.Inline(ctx, rounds)
	returned = true
	return open
}

// Waiting returns the number of callers that have gathered for the next round of key. It is for
// tests.
func (g *Group[K, R]) Waiting(key K) int {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.running[key]; r != nil && r.next != nil {
		return int(r.next.callers)
	}
	return 0
}

// Idle reports whether no round is in progress. It is for tests.
func (g *Group[K, R]) Idle() bool {
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		n := len(s.running)
		s.mu.Unlock()
		if n > 0 {
			return false
		}
	}
	return true
}

// Closed reports whether Close has been called.
func (g *Group[K, R]) Closed() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}

// Close ends all rounds. Their callers get the error cause, and the contexts of their flights end
// with this cause. Close returns when the last flight, and the last call of Hooks.Inline, have
// ended.
func (g *Group[K, R]) Close(cause error) {
	g.closing.Do(func() {
		g.cause = cause
		var flights []*Flight[K, R]
		for i := range g.shards {
			s := &g.shards[i]
			s.mu.Lock()
			s.closed = true
			for _, r := range s.running {
				if r.flight != nil {
					flights = append(flights, r.flight)
				}
			}
			s.mu.Unlock()
		}
		close(g.closed)
		for _, f := range flights {
			f.cancel(cause)
		}
	})
	g.flights.Wait()
}
