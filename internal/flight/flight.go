// Package flight lets the concurrent callers of one key share one result, in rounds.
//
// A round's callers are fixed before it begins: callers that come later gather for the next round,
// which begins when this one has ended. So no caller is handed a value that was read before it
// asked, though the value is read only once for all who ask together. (In a singleflight that
// callers join while it runs, a caller that comes after an invalidation can be handed a value from
// before the invalidation.) There are two exceptions. A flight that has yet to read all that it
// will give may take in those who have gathered until then (TakeIn). And a result may be given to
// those who have gathered, if Hooks.Late says that it is still true.
//
// The rounds of many keys fly together: those of a batch, and then those that gathered meanwhile
// for keys that have completed together.
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

// ErrNotEqual is the error of a key such as a NaN, which does not equal itself, so that no map
// finds it again.
var ErrNotEqual = errors.New("the key does not equal itself")

const shards = 64

// Group runs rounds. One round of a key is under way, one gathers.
type Group[K comparable, R any] struct {
	hooks Hooks[K, R]

	seed    maphash.Seed
	shards  [shards]shard[K, R]
	flights sync.WaitGroup // and first looks

	closing sync.Once
	closed  chan struct{}
	cause   error // why it is closed
}

// Hooks are what a group calls.
type Hooks[K comparable, R any] struct {
	// First, if not nil, is called for rounds whose one caller asks for them just now, on the
	// caller's goroutine and with its context. First returns the rounds that it has brought to
	// their end, and the rest, which go on in a flight.
	Inline func(ctx context.Context, rounds []*Round[K, R]) (over, rest []*Round[K, R])

	// Fly completes all rounds of a flight: it begins after all their callers have asked, on a
	// goroutine of its own, with a context that ends when the last caller has left. The context
	// carries the values of the first caller's context until that caller leaves or gets its result.
	Run func(ctx context.Context, f *Flight[K, R])

	// Late tells whether a successful result may also be given to those who have gathered
	// meanwhile. It must not block.
	StillValid func(result *R) bool

	// Await, if not nil, is called with a caller's context when the caller is about to wait for
	// rounds, one for each key that it has asked for; some may be nil, or have completed. over, if
	// not nil, is called when the caller no longer waits, and before it goes on; refused, if not
	// nil, has the errors of those rounds that the caller is not to wait for.
	Await func(ctx context.Context, rounds []*Round[K, R]) (over func(), refused []error)

	// Caught makes the error of a First or Fly that panicked (recovered is the value) or called
	// runtime.Goexit (recovered is nil), on the goroutine that did.
	Caught func(recovered any) error
}

type shard[K comparable, R any] struct {
	mu      sync.Mutex
	closed  bool
	running map[K]*Round[K, R]
}

// Round is one round of one key. Its flight sets Result or Err before the round completes; nobody
// changes them afterwards.
type Round[K comparable, R any] struct {
	Key    K
	Result R
	Err    error

	asked time.Time // when the first caller came; zero for a round that began at once
	shard *shard[K, R]
	self  [1]*Round[K, R] // saves allocations where it is alone

	waiters[K, R]
}

// Asked is when the first caller of a round that has gathered came; zero for one that began at
// once.
func (r *Round[K, R]) Asked() time.Time { return r.asked }

// waiters are the callers of a round, and what it is part of. The lock of the shard guards them.
type waiters[K comparable, R any] struct {
	callers     int32 // that still wait
	completed   bool
	flight      *Flight[K, R]     // nil while it gathers, and during its first look
	startedBy   *struct{ _ byte } // the DoMany that has begun it
	next        *Round[K, R]      // gathers behind this one
	takenIn     *Round[K, R]      // the last of those that were taken into this one
	prevTakenIn *Round[K, R]      // of a round that was taken in: the one that was taken in before it
	values      *lent.Context     // of the first caller of a round that gathers
	done        chan struct{}     // nil if all its callers wait for the flight
}

// New makes a group.
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

// Do waits for a round of key that begins after now, or for a result that Hooks.Late allows. It
// returns ctx's error as soon as ctx ends; the round goes on for its other callers. If this call
// begins a round, or is the first to gather for one, it gets the round from create, which may have
// set its Result.
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

// DoMany is Do for many keys: the rounds that it begins fly together. A key that comes twice has
// one round. It returns when all have completed, or when ctx ends, or the group is closed. Errors
// has an error for each key whose round has none to give, nil for the others. create is called as
// in Do, with the index of the key.
func (g *Group[K, R]) DoMany(ctx context.Context, keys []K, create func(i int) *Round[K, R]) (rounds []*Round[K, R], errs []error) {
	rounds, errs = make([]*Round[K, R], len(keys)), make([]error, len(keys))
	if err := ctx.Err(); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return rounds, errs
	}
	var own []*Round[K, R]           // that begin with this call
	var values *lent.Context         // of the rounds that gather with this call
	defer func() { values.End() }()  // which may be lent below
	var call = new(struct{ _ byte }) // marks them
	shards := make([]*shard[K, R], len(keys))
	for i, key := range keys {
		shards[i] = g.shard(key) // panics for one that has no hash, while nothing has begun
	}
	for i, key := range keys {
		if key != key { //nolint:gocritic // see ErrNotEqual
			errs[i] = ErrNotEqual
			continue
		}
		s := shards[i]
		s.mu.Lock()
		switch running := s.running[key]; {
		case s.closed:
			errs[i] = g.cause
		case running != nil && running.startedBy == call: // the key comes twice
			running.callers++
			rounds[i] = running
		case running != nil:
			rounds[i] = running.join(ctx, func() *Round[K, R] { return create(i) }, &values)
		default:
			if own == nil {
				own = make([]*Round[K, R], 0, len(keys)-i)
				g.flights.Add(1)
			}
			r := create(i)
			r.Key, r.shard, r.callers, r.startedBy = key, s, 1, call
			s.running[key] = r
			own = append(own, r)
			rounds[i] = r
		}
		s.mu.Unlock()
	}
	var f *Flight[K, R]
	if own != nil {
		if f = g.start(ctx, own); f != nil {
			defer f.values.End()
		}
	}
	g.awaitAll(ctx, f, rounds, errs)
	return rounds, errs
}

// join adds a caller to the round that gathers behind r. The shard is locked. The first caller of a
// round creates it, and lends it values; the caller ends the loan when it leaves.
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

// leave takes one caller out of r. An abandoned round that gathers is dropped; a flight that all
// callers of all its rounds have left is told to stop, and ends in its own time. It answers true if
// r has completed already.
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

// launch begins rounds: their caller looks itself, and rounds that it does not end go on in a
// flight, nil if there is nothing left.
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

// Waiting is how many callers have gathered for the next round of key. Tests need it, nothing else.
func (g *Group[K, R]) Waiting(key K) int {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.running[key]; r != nil && r.next != nil {
		return int(r.next.callers)
	}
	return 0
}

// Idle tells whether no round is under way. Tests need it, nothing else.
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

// Closed tells whether Close has been called.
func (g *Group[K, R]) Closed() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}

// Close ends all rounds: their callers get cause, their contexts end with it. It returns when the
// last flight, and the last first look, have ended.
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
