// Package flight lets the concurrent callers of one key share one result, in rounds.
//
// A round's callers are fixed before it begins: whoever comes later gathers for the next round, which begins when this one has
// ended. So nobody is handed what was read before he asked, though it is read only once for all who ask together. (In a
// singleflight that callers join while it runs, a caller who comes after an invalidation can be handed a value from before it.)
package flight

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// ErrAbandoned is the cause of a round's context when its last caller has left.
var ErrAbandoned = errors.New("all callers have left")

const shards = 64

// Group runs rounds. One round of a key is under way, one gathers.
type Group[K comparable, R any] struct {
	run    func(ctx context.Context, key K) (R, error)
	late   func(R) bool
	caught func(recovered any) error

	seed   maphash.Seed
	shards [shards]shard[K, R]
	rounds sync.WaitGroup

	closing sync.Once
	closed  chan struct{}
	cause   error // why it is closed
}

type shard[K comparable, R any] struct {
	mu     sync.Mutex
	closed bool
	lines  map[K]*line[R]
}

// line is the rounds of one key.
type line[R any] struct {
	running, gathering *round[R]
}

type round[R any] struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	callers int // who still wait
	done    chan struct{}
	result  R
	err     error
}

// New makes a group. run is one round: it begins after all its callers have asked, on a goroutine of its own, with a context that
// carries the values of the first caller's and ends when the last caller has left. late tells whether a successful result may also be
// given to those who have gathered meanwhile; it must not block. caught makes the error of a run that panicked
// (recovered is the value) or called runtime.Goexit (recovered is nil), on the goroutine that did.
func New[K comparable, R any](run func(context.Context, K) (R, error), late func(R) bool, caught func(recovered any) error) *Group[K, R] {
	g := &Group[K, R]{run: run, late: late, caught: caught, seed: maphash.MakeSeed(), closed: make(chan struct{})}
	for i := range g.shards {
		g.shards[i].lines = make(map[K]*line[R])
	}
	return g
}

// Do waits for a round of key that begins after now. It returns ctx's error as soon as ctx ends; the round goes on for its other
// callers.
func (g *Group[K, R]) Do(ctx context.Context, key K) (R, error) {
	var zero R
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	s := &g.shards[maphash.Comparable(g.seed, key)%shards]
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return zero, g.cause
	}
	l := s.lines[key]
	var r *round[R]
	switch {
	case l == nil:
		r = newRound[R](ctx)
		l = &line[R]{running: r}
		s.lines[key] = l
		g.rounds.Go(func() { g.fly(s, key, l, r) })
	case mutant.Active == mutant.JoinRunning:
		r = l.running
		r.callers++
	case l.gathering == nil:
		r = newRound[R](ctx)
		l.gathering = r
	default:
		r = l.gathering
		r.callers++
	}
	s.mu.Unlock()

	left := ctx.Done()
	if mutant.Active == mutant.CallerWaits {
		left = nil
	}
	select {
	case <-r.done:
		return r.result, r.err
	case <-left:
		g.leave(s, l, r)
		return zero, ctx.Err()
	case <-g.closed:
		g.leave(s, l, r)
		return zero, g.cause
	}
}

func newRound[R any](ctx context.Context) *round[R] {
	r := &round[R]{callers: 1, done: make(chan struct{})}
	if mutant.Active != mutant.LeaderCancels {
		ctx = context.WithoutCancel(ctx)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// leave takes one caller out of r. An abandoned round that gathers is dropped; one that runs is told to stop, and ends in its own time.
func (g *Group[K, R]) leave(s *shard[K, R], l *line[R], r *round[R]) {
	s.mu.Lock()
	r.callers--
	abandoned := r.callers == 0 && !s.closed // Close tells the rounds itself, and why
	if abandoned && l.gathering == r {
		l.gathering = nil
	}
	s.mu.Unlock()
	if abandoned && mutant.Active != mutant.AbandonedRuns {
		r.cancel(ErrAbandoned)
	}
}

// fly runs r to its end, whatever that is, and starts the next round.
func (g *Group[K, R]) fly(s *shard[K, R], key K, l *line[R], r *round[R]) {
	returned := false
	defer func() {
		if !returned {
			r.err = g.caught(recover())
		}
		g.land(s, key, l, r)
	}()
	r.result, r.err = g.run(r.ctx, key)
	returned = true
}

// land gives out what r has got.
func (g *Group[K, R]) land(s *shard[K, R], key K, l *line[R], r *round[R]) {
	s.mu.Lock()
	next := l.gathering
	l.running, l.gathering = next, nil
	served := next != nil && r.err == nil && g.late(r.result)
	if next == nil || served || s.closed {
		delete(s.lines, key)
	} else {
		g.rounds.Go(func() { g.fly(s, key, l, next) })
	}
	s.mu.Unlock()

	r.end()
	if served {
		next.result = r.result
		next.end()
	}
}

func (r *round[R]) end() {
	close(r.done)
	r.cancel(nil)
}

// Waiting is how many callers have gathered for the next round of key. Tests need it, nothing else.
func (g *Group[K, R]) Waiting(key K) int {
	s := &g.shards[maphash.Comparable(g.seed, key)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[key]; l != nil && l.gathering != nil {
		return l.gathering.callers
	}
	return 0
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

// Close ends all rounds: their callers get cause, their contexts end with it. It returns when the last round has ended.
func (g *Group[K, R]) Close(cause error) {
	g.closing.Do(func() {
		g.cause = cause
		var open []*round[R]
		for i := range g.shards {
			s := &g.shards[i]
			s.mu.Lock()
			s.closed = true
			for _, l := range s.lines {
				open = append(open, l.running)
				if l.gathering != nil {
					open = append(open, l.gathering)
				}
			}
			s.mu.Unlock()
		}
		close(g.closed)
		for _, r := range open {
			r.cancel(cause)
		}
	})
	g.rounds.Wait()
}
